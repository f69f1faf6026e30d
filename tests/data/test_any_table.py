"""Tables that people have: what was given, and what happened. docs/reference/data-formats.md has the short list."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from people_tables import (
    CASES,
    COCO,
    Given,
    Read,
)

from labelwise.core.errors import LabelwiseError
from labelwise.data import LabelTable, open_data


def written(folder: Path, given: Given) -> Path:
    path = folder / given.file
    for name in (*given.images.split(), given.file):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    path.write_text(given.text if isinstance(given.text, str) else json.dumps(given.text))
    return path


def read(table: LabelTable, folder: Path) -> Read:
    names = [table.present(row) for row in range(len(table))]
    between = [" " if all(" " not in name for name in each) else "+" for each in names]
    paths = [os.path.relpath(image, folder) for image in table.images]
    return {path: each.join(row) for path, each, row in zip(paths, between, names, strict=True)}


@pytest.mark.parametrize("given", CASES.values(), ids=CASES.keys())
def test_what_was_given_and_what_happened(given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, given)
    monkeypatch.chdir(tmp_path)
    if isinstance(given.happens, str):
        with pytest.raises(LabelwiseError, match=given.happens) as caught:
            open_data(path, **given.options)
        assert "\n" not in str(caught.value)
        return
    table = open_data(path, **given.options)
    assert read(table, tmp_path) == given.happens
    if not given.note:
        assert table.notes == ()
    else:
        assert len(table.notes) == 1
        assert re.search(given.note, table.notes[0])
        assert "\n" not in table.notes[0]


@pytest.mark.parametrize("name", ["fiftyone, samples", "fiftyone, labels", "fiftyone, COCO"])
def test_the_folder_of_an_export(name: str, tmp_path: Path) -> None:
    written(tmp_path, CASES[name])
    (tmp_path / "metadata.json").write_text("{}")
    table = open_data(tmp_path)
    assert read(table, tmp_path) == CASES[name].happens
    assert set(table.splits) == ({"val"} if name == "fiftyone, samples" else {""})


def test_folders_of_roboflow(tmp_path: Path) -> None:
    root = {"id": 0, "name": "pets", "supercategory": "none"}
    below = [{**category, "supercategory": "pets"} for category in COCO["categories"]]
    for split in ("train", "valid", "test"):
        for number in (1, 2):
            (tmp_path / split).mkdir(exist_ok=True)
            (tmp_path / split / f"{number}.jpg").touch()
        boxes = {**COCO, "categories": [root, *below]}
        (tmp_path / split / "_annotations.coco.json").write_text(json.dumps(boxes))
    table = open_data(tmp_path)
    assert table.labels == ("cat", "dog")  # not the project's own name
    assert table.splits == ["test"] * 2 + ["train"] * 2 + ["val"] * 2
    assert [os.path.relpath(image, tmp_path) for image in table.images[:2]] == ["test/1.jpg", "test/2.jpg"]
    for split in ("train", "valid", "test"):
        (tmp_path / split / "_annotations.coco.json").unlink()
        (tmp_path / split / "_classes.csv").write_text("filename, cat, dog\n1.jpg, 1, 0\n2.jpg, 0, 1\n")
    again = open_data(tmp_path)
    assert (again.labels, list(again.images), list(again.splits)) == (
        table.labels,
        list(table.images),
        list(table.splits),
    )
    assert again.targets().tolist() == table.targets().tolist()


def test_images_without_an_annotation_are_counted(tmp_path: Path) -> None:
    written(tmp_path, Given({**COCO, "annotations": COCO["annotations"][:1]}, "1.jpg 2.jpg", "", file="t.json"))
    (note,) = open_data(tmp_path / "t.json").notes
    assert note.endswith(
        "1 of 2 images have no annotation and are left out; empty=keep takes them as images without a label"
    )


def test_a_data_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    import numpy as np

    monkeypatch.chdir(tmp_path)
    written(tmp_path, Given("", "p/1.jpg p/2.jpg p/3.jpg", ""))
    images = ["p/1.jpg", "p/2.jpg", "p/3.jpg"]
    labels: list[Any] = [["cat", "dog"], np.array(["dog"]), None]
    expected = {"p/1.jpg": "cat dog", "p/2.jpg": "dog", "p/3.jpg": ""}
    frame = pandas.DataFrame({"image": images, "labels": labels, "split": ["train", "val", None]})
    assert read(open_data(frame), tmp_path) == expected
    assert list(open_data(frame).splits) == ["train", "val", ""]
    assert read(open_data(frame.set_index("image")), tmp_path) == expected
    assert read(open_data(frame.assign(image=["1", "2", "3"]), root="p"), tmp_path) == expected
    wide = pandas.DataFrame({"cat": [1, 0, np.nan], "dog": [1.0, 1, 0]}, index=images)
    assert open_data(wide).targets().tolist() == [[1, 1], [0, 1], [-1, 0]]
    assert open_data(frame).to_pandas().drop(columns="split").to_numpy().tolist() == [[1, 1], [0, 1], [0, 0]]
    with pytest.raises(LabelwiseError, match=r"DataFrame row 1: image 'gone\.jpg' does not exist\."):
        open_data(frame.assign(image=["p/1.jpg", "gone.jpg", "p/3.jpg"]))
    with pytest.raises(LabelwiseError, match="DataFrame: unknown option 'seperator'; did you mean 'separator'"):
        open_data(frame, seperator="|")


def test_labels_are_sorted_as_people_sort_them(tmp_path: Path) -> None:
    written(tmp_path, Given("image,labels\n1.jpg,label10|label2|label1\n", "1.jpg label10/1.jpg label9/1.jpg", ""))
    assert open_data(tmp_path / "t.csv").labels == ("label1", "label2", "label10")
    assert open_data(f"imagefolder:{tmp_path}").labels == ("label9", "label10")


def test_a_given_list_stays_binding_where_variants_are_joined(tmp_path: Path) -> None:
    path = written(tmp_path, Given("image,labels\n1.jpg,Cat|dog\n", "1.jpg", ""))
    assert open_data(path, labels=["dog", "cat"], merge_variants=True).target(0).tolist() == [1, 1]
    with pytest.raises(LabelwiseError, match=r"t\.csv: unknown label 'dgo'; did you mean 'dog'"):
        open_data(path, labels=["dgo", "cat"], merge_variants=True)
