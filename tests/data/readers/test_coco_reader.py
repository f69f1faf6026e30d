from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwise.core.errors import LabelwiseError
from labelwise.data import open_data


def test_tiny_coco_agrees_with_pycocotools(shared_data: Path) -> None:
    coco_api = pytest.importorskip("pycocotools.coco")
    with contextlib.redirect_stdout(io.StringIO()):
        reference = coco_api.COCO(str(shared_data / "tiny_coco" / "annotations" / "instances_val2017.json"))
    table = open_data(f"coco:{shared_data / 'tiny_coco'}?empty=keep")
    assert len(table) == len(reference.getImgIds()) == 50
    ids = sorted(reference.getCatIds())
    assert list(table.labels) == [category["name"] for category in reference.loadCats(ids)]
    assert len(table.labels) == 80
    assert table.split_names == ("val",)
    # Label by label, which images have it ...
    row_of = {int(Path(image).stem): row for row, image in enumerate(table.images)}
    targets = table.targets()
    for column, category in enumerate(ids):
        expected = sorted(row_of[image] for image in reference.getImgIds(catIds=[category]))
        assert np.flatnonzero(targets[:, column] == 1).tolist() == expected
    # ... and image by image, which labels: the annotations themselves.
    for image, row in row_of.items():
        found = {a["category_id"] for a in reference.loadAnns(reference.getAnnIds(imgIds=image))}
        assert {ids[column] for column in np.flatnonzero(targets[row])} == found
    # The published protocol leaves out images without annotations.
    annotated = [image for image in reference.getImgIds() if reference.getAnnIds(imgIds=image)]
    assert {int(Path(image).stem) for image in open_data(shared_data / "tiny_coco").images} == set(annotated)


def instances(images: dict[int, str], annotations: list[tuple[int, int, int]]) -> dict[str, Any]:
    return {
        "images": [{"id": id, "file_name": name} for id, name in images.items()],
        "annotations": [
            {"id": n, "image_id": image, "category_id": category, "iscrowd": crowd}
            for n, (image, category, crowd) in enumerate(annotations)
        ],
        # out of order on purpose: columns follow the ids
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}, {"id": 90, "name": "toothbrush"}],
    }


@pytest.fixture
def coco2014(tmp_path: Path) -> Path:
    parts = {
        "train": instances({7: "COCO_train2014_7.jpg", 5: "COCO_train2014_5.jpg"}, [(5, 18, 0), (5, 1, 1), (5, 18, 0)]),
        "val": instances({9: "COCO_val2014_9.jpg"}, [(9, 1, 1), (9, 1, 0)]),
    }
    (tmp_path / "annotations").mkdir()
    for split, content in parts.items():
        (tmp_path / "annotations" / f"instances_{split}2014.json").write_text(json.dumps(content))
        (tmp_path / f"{split}2014").mkdir()
        for image in content["images"]:
            (tmp_path / f"{split}2014" / image["file_name"]).touch()
    return tmp_path


def test_2014_layout_crowds_and_empty_images(coco2014: Path) -> None:
    table = open_data(coco2014)
    assert table.labels == ("person", "dog", "toothbrush")
    assert table.splits == ["train", "val"]
    assert table.images == [
        str(coco2014 / "train2014/COCO_train2014_5.jpg"),
        str(coco2014 / "val2014/COCO_val2014_9.jpg"),
    ]
    assert table.targets().tolist() == [[1, 1, 0], [1, 0, 0]]
    kept = open_data(coco2014, empty="keep")
    assert kept.targets().tolist() == [[0, 0, 0], [1, 1, 0], [1, 0, 0]]
    # In row 0 person is only a crowd; in row 1 there is also a single person.
    assert open_data(coco2014, crowd="unknown").targets()[:, 0].tolist() == [-1, 1]
    assert open_data(coco2014, crowd="absent").targets()[:, 0].tolist() == [0, 1]
    assert open_data(coco2014, labels=["dog"]).targets().tolist() == [[1], [0]]


def test_single_file_with_images_elsewhere(coco2014: Path) -> None:
    file = coco2014 / "annotations" / "instances_val2014.json"
    assert open_data(file).images == [str(coco2014 / "val2014/COCO_val2014_9.jpg")]
    moved = coco2014 / "photos"
    (coco2014 / "val2014").rename(moved)
    with pytest.raises(LabelwiseError, match=r"COCO_val2014_9\.jpg' does not exist.*images_folder="):
        open_data(file)
    assert open_data(file, images_folder=str(moved)).images == [str(moved / "COCO_val2014_9.jpg")]


def test_mistakes(coco2014: Path) -> None:
    file = coco2014 / "annotations" / "instances_val2014.json"
    good = json.loads(file.read_text())
    file.write_text(json.dumps({**good, "annotations": [{"id": 3, "image_id": 9, "category_id": 2}]}))
    with pytest.raises(LabelwiseError, match="annotation 3 refers to image or category 2"):
        open_data(coco2014)
    file.write_text(json.dumps({**good, "categories": good["categories"][:2]}))
    with pytest.raises(LabelwiseError, match="other categories"):
        open_data(coco2014)
    file.write_text(json.dumps({"images": []}))
    with pytest.raises(LabelwiseError, match="not a COCO instances file: it has no annotations, categories"):
        open_data(coco2014)
    file.write_text("{")
    with pytest.raises(LabelwiseError, match="not JSON"):
        open_data(coco2014)
    file.rename(file.with_name("instances_val2017.json"))
    with pytest.raises(LabelwiseError, match=r"several years \(2014, 2017\)"):
        open_data(coco2014)
    assert open_data(coco2014, year="2014").split_names == ("train",)


@pytest.mark.parametrize(
    ("part", "entry", "message"),
    [
        ("images", {"id": 1}, "entry 1 of 'images' has no 'file_name' that is str"),
        ("images", {"file_name": "b.jpg"}, "has no 'id' that is int or str"),
        ("images", {"id": 5, "file_name": "again.jpg"}, "lists an image id twice"),
        ("categories", {"id": 2, "name": None}, "entry 3 of 'categories' has no 'name' that is str"),
        ("categories", {"id": 2, "name": "dog"}, "lists a category twice"),
        ("annotations", {"category_id": 18}, "entry 1 of 'annotations' has no 'image_id'"),
        ("annotations", "cat", "entry 1 of 'annotations' has no 'image_id'"),
    ],
)
def test_entries_that_lack_something(tmp_path: Path, part: str, entry: Any, message: str) -> None:
    content = instances({5: "a.jpg"}, [(5, 18, 0)])
    content[part].append(entry)
    (tmp_path / "a.jpg").touch()
    (tmp_path / "set.json").write_text(json.dumps(content))
    with pytest.raises(LabelwiseError, match=message):
        open_data(f"coco:{tmp_path / 'set.json'}")


def test_what_may_be_missing(tmp_path: Path) -> None:
    content = instances({5: "a.jpg"}, [])
    (tmp_path / "a.jpg").touch()
    file = tmp_path / "latest.json"
    file.write_text(json.dumps(content))
    with pytest.raises(LabelwiseError, match=r"no image of .* has an annotation.*empty=keep"):
        open_data(f"coco:{file}")
    content["annotations"].append({"image_id": 5, "category_id": 18, "iscrowd": None})
    file.write_text(json.dumps(content))
    table = open_data(f"coco:{file}")
    assert (table.present(0), table.split_names) == (["dog"], ("",))  # `latest` is no `test`
