"""Small files in the format of the original NUS-WIDE and of the ML-Decoder authors' zero-shot files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from labelwise.core.errors import LabelwiseError
from labelwise.data import open_data


@pytest.fixture
def original(touch: Callable[..., Path]) -> Path:
    root = touch(*(f"Flickr/{name}.jpg" for name in ("actor/0001_2124494179", "zoo/0002_1", "zoo/0003_2")))
    files = {
        "ImageList/TrainImagelist.txt": "actor\\0001_2124494179.jpg\r\nzoo\\0002_1.jpg\r\n",
        "ImageList/TestImagelist.txt": "zoo\\0003_2.jpg\r\n",
        "ConceptsList/Concepts81.txt": "airport\nanimal\n",
        "Groundtruth/TrainTestLabels/Labels_airport_Train.txt": "0\n0\n",
        "Groundtruth/TrainTestLabels/Labels_airport_Test.txt": "1\n",
        "Groundtruth/TrainTestLabels/Labels_animal_Train.txt": "1\n0\n",
        "Groundtruth/TrainTestLabels/Labels_animal_Test.txt": "1\n",
        "NUS_WID_Tags/TagList1k.txt": "nature\nanimal\nsky\n",
        "NUS_WID_Tags/Train_Tags1k.dat": "1\t0\t0\t\n0\t1\t1\t\n",
        "NUS_WID_Tags/Test_Tags1k.dat": "0\t0\t1\t\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode())
    return root


def test_concepts(original: Path) -> None:
    table = open_data(original)
    assert table.labels == ("airport", "animal")
    assert table.targets().tolist() == [[0, 1], [0, 0], [1, 1]]
    assert table.splits == ["train", "train", "test"]
    assert table.images[0] == f"{original}/Flickr/actor/0001_2124494179.jpg"
    assert table.label_sets == {}
    assert open_data(original, empty="drop").images == [table.images[0], table.images[2]]


def test_tags_and_zero_shot(original: Path) -> None:
    tags = open_data(f"nus-wide:{original}?vocabulary=tags")
    assert tags.labels == ("nature", "animal", "sky")
    assert tags.targets().tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 1]]
    words = open_data(original, vocabulary="zero-shot")
    assert words.label_sets == {"seen": ("nature", "sky"), "unseen": ("airport", "animal")}
    assert words.labels == ("nature", "sky", "airport", "animal")
    # `animal` is a tag and a concept: its column is the verified concept, not the user's tag.
    assert words.targets().tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 1, 1, 1]]


def test_incomplete_files_are_named(original: Path) -> None:
    labels = original / "Groundtruth/TrainTestLabels/Labels_animal_Train.txt"
    labels.write_text("1\n")
    with pytest.raises(LabelwiseError, match=r"Labels_animal_Train\.txt: expected 2 values 0 or 1, found 1"):
        open_data(original)
    labels.unlink()
    with pytest.raises(LabelwiseError, match=r"Labels_animal_Train\.txt is missing"):
        open_data(original)
    labels.write_text("1\n0\n")
    (original / "NUS_WID_Tags/Train_Tags1k.dat").write_text("1\t0\t0\n")
    with pytest.raises(LabelwiseError, match=r"Train_Tags1k\.dat has 1 line for the 2 images"):
        open_data(original, vocabulary="tags")


def test_zero_shot_files_of_the_ml_decoder_authors(touch: Callable[..., Path]) -> None:
    root = touch("images/a.jpg", "images/b.jpg", "images/c.jpg")
    (root / "data.csv").write_text(
        "filepath,label,split_name\nimages/a.jpg,\"[sky, 'animal']\",train\nimages/b.jpg,[nature],train\n"
        'images/c.jpg,"[sky, animal, zebra]",val\n'
    )
    (root / "benchmark_81_v0.json").write_text(
        json.dumps({"train class": ["sky", "nature"], "test class": ["animal", "zebra"]})
    )
    table = open_data(f"nus-wide:{root}")
    assert table.labels == ("animal", "nature", "sky", "zebra")  # sorted, as MultiLabelBinarizer does
    assert table.label_sets == {"seen": ("nature", "sky"), "unseen": ("animal", "zebra")}
    assert table.targets().tolist() == [[1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 1, 1]]
    assert table.splits == ["train", "train", "val"]
    # The other form of the JSON: what is not unseen is seen.
    (root / "benchmark_81_v0.json").write_text(json.dumps({"test class": ["zebra"]}))
    assert open_data(root).label_sets["seen"] == ("animal", "nature", "sky")
    (root / "benchmark_81_v0.json").write_text("{}")
    with pytest.raises(LabelwiseError, match="'train class' and 'test class'"):
        open_data(root)
