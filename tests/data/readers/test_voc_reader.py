"""The VOC reader against the official numbers and a literal parse that shares no code with it."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from labelwise.core.errors import LabelwiseError
from labelwise.data import LabelTable, open_data

# Images with at least one object that is not difficult: the database statistics the organisers published.
# fmt: off
LABELS = ["aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
          "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"]
# fmt: on
TRAINVAL = [238, 243, 330, 181, 244, 186, 713, 337, 445, 141, 200, 421, 287, 245, 2008, 245, 96, 229, 261, 256]
TEST = [204, 239, 282, 172, 212, 174, 721, 322, 417, 127, 190, 418, 274, 222, 2007, 224, 97, 223, 259, 229]


@pytest.fixture(scope="session")
def devkit(shared_data: Path) -> Path:
    return shared_data / "VOCdevkit"


@pytest.fixture(scope="session")
def xml_folder(devkit: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voc")
    with tarfile.open(devkit / "VOC2007" / "Annotations.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "Annotations"


def by_image(table: LabelTable) -> dict[str, list[int]]:
    return {Path(image).stem: row for image, row in zip(table.images, table.targets().tolist(), strict=True)}


def test_official_counts(devkit: Path) -> None:
    table = open_data(devkit)
    assert table.labels == tuple(LABELS)
    assert [len(table.rows(split)) for split in ("train", "val", "trainval", "test")] == [2501, 2510, 5011, 4952]
    assert table.select("trainval").positives_per_label().tolist() == TRAINVAL
    assert table.select("test").positives_per_label().tolist() == TEST


def test_lists_and_xml_and_literal_parses_agree_in_all_199260_values(devkit: Path, xml_folder: Path) -> None:
    lists = by_image(open_data(devkit, annotations="imagesets"))
    xml = by_image(open_data(devkit, annotations="xml", annotations_folder=str(xml_folder)))
    assert len(lists) == len(xml) == 9963
    assert lists == xml

    literal_xml = {}
    for file in xml_folder.glob("*.xml"):
        row = [0] * 20
        for name, difficult in re.findall(
            r"<object>\s*<name>(\w+)</name>.*?<difficult>(\d)</difficult>", file.read_text(), re.DOTALL
        ):
            place = LABELS.index(name)
            row[place] = 1 if difficult == "0" or row[place] == 1 else -1
        literal_xml[file.stem] = row
    assert literal_xml == xml

    # The trainval lists, which the reader does not use: it reads train and val.
    literal_lists: dict[str, list[int]] = {image: [9] * 20 for image in lists}
    for place, label in enumerate(LABELS):
        for split in ("trainval", "test"):
            file = devkit / "VOC2007" / "ImageSets" / "Main" / f"{label}_{split}.txt"
            for line in file.read_text().splitlines():
                image, value = line.split()
                literal_lists[image][place] = {"1": 1, "0": -1, "-1": 0}[value]
    assert literal_lists == lists


@pytest.mark.parametrize(("difficult", "value"), [("present", 1), ("absent", 0)])
def test_difficult_is_a_choice(devkit: Path, xml_folder: Path, difficult: str, value: int) -> None:
    expected = open_data(devkit).targets()
    assert (expected == -1).sum() == 1226
    expected[expected == -1] = value
    assert np.array_equal(open_data(f"voc:{devkit}?difficult={difficult}").targets(), expected)
    xml = open_data(devkit, difficult=difficult, annotations_folder=str(xml_folder))
    assert np.array_equal(xml.targets(), expected)


# ---- small devkits


def write_devkit(root: Path, year: str, objects: dict[str, list[tuple[str, int]]]) -> Path:
    folder = root / f"VOC{year}"
    for name in ("Annotations", "JPEGImages"):
        (folder / name).mkdir(parents=True)
    for image, found in objects.items():
        items = "".join(
            f"<object><name>{name}</name><difficult>{difficult}</difficult>"
            "<part><name>head</name><difficult>0</difficult></part></object>"
            for name, difficult in found
        )
        (folder / "Annotations" / f"{image}.xml").write_text(f"<annotation>{items}</annotation>")
        (folder / "JPEGImages" / f"{image}.jpg").touch()
    return folder


def test_devkit_without_lists_has_no_splits_and_its_own_labels(tmp_path: Path) -> None:
    write_devkit(tmp_path, "2012", {"b": [("zebra", 0)], "a": [("zebra", 1), ("ant", 0), ("ant", 1)]})
    table = open_data(tmp_path)
    assert table.labels == ("ant", "zebra")  # body parts are no labels
    assert [Path(image).stem for image in table.images] == ["a", "b"]
    assert table.targets().tolist() == [[1, -1], [0, 1]]
    assert table.split_names == ("",)


def test_two_years_need_a_choice(tmp_path: Path) -> None:
    for year in ("2007", "2012"):
        write_devkit(tmp_path, year, {year: [("dog", 0)]})
    with pytest.raises(LabelwiseError, match=r"several years \(2007, 2012\).*\?year=2007"):
        open_data(tmp_path)
    assert open_data(tmp_path, year="2012").images[0].endswith("VOC2012/JPEGImages/2012.jpg")
    assert open_data(tmp_path / "VOC2012").images[0].endswith("2012.jpg")
    with pytest.raises(LabelwiseError, match=r"^voc:.*: unknown year '2008'; did you mean '2007'"):
        open_data(tmp_path, year="2008")


def test_mistakes_name_the_file(tmp_path: Path, touch: Callable[..., Path]) -> None:
    folder = write_devkit(tmp_path, "2007", {"1": [("dog", 0)]})
    (folder / "Annotations" / "1.xml").write_text("<annotation><object>")
    with pytest.raises(LabelwiseError, match=r"1\.xml is not readable XML"):
        open_data(tmp_path)
    (folder / "Annotations" / "1.xml").unlink()
    main = folder / "ImageSets" / "Main"
    main.mkdir(parents=True)
    (main / "train.txt").write_text("1\n")
    with pytest.raises(LabelwiseError, match=r"Annotations.1\.xml is missing"):
        open_data(tmp_path)
    (main / "dog_train.txt").write_text("1 2\n")
    with pytest.raises(LabelwiseError, match=r"dog_train\.txt line 1: expected an image of train.txt and 1, 0 or -1"):
        open_data(tmp_path)
    (main / "dog_train.txt").write_text("1  1\n")
    (folder / "JPEGImages" / "1.jpg").unlink()
    with pytest.raises(LabelwiseError, match=r"JPEGImages/1\.jpg' does not exist\..*check_files='drop'"):
        open_data(tmp_path)
    assert open_data(tmp_path, check_files=False).present(0) == ["dog"]


def test_images_without_published_labels_are_unknown(tmp_path: Path, touch: Callable[..., Path]) -> None:
    """VOC 2012 publishes which images are for testing, but not their labels."""
    touch("VOC2012/JPEGImages/1.jpg", "VOC2012/JPEGImages/2.jpg", "VOC2012/ImageSets/Main/x")
    main = tmp_path / "VOC2012" / "ImageSets" / "Main"
    for name, text in {"train": "1\n", "test": "2\n", "dog_train": "1  1\n", "cat_train": "1 -1\n"}.items():
        (main / f"{name}.txt").write_text(text)
    table = open_data(tmp_path)
    assert len(table.labels) == 20
    assert table.select("train").target(0)[[7, 11]].tolist() == [0, 1]
    assert table.select("test").target(0).tolist() == [-1] * 20


@pytest.mark.parametrize(
    ("images", "lists"),
    [
        ({"train": "1\n", "val": "2\n"}, {"cat_trainval": "1  1\n2 -1\n"}),
        ({"trainval": "1\n2\n"}, {"cat_train": "1  1\n", "cat_val": "2 -1\n"}),
    ],
)
def test_lists_of_train_and_val_in_one_or_two(
    tmp_path: Path, touch: Callable[..., Path], images: dict[str, str], lists: dict[str, str]
) -> None:
    touch("VOC2012/JPEGImages/1.jpg", "VOC2012/JPEGImages/2.jpg", "VOC2012/ImageSets/Main/x")
    main = tmp_path / "VOC2012" / "ImageSets" / "Main"
    for name, text in (images | lists).items():
        (main / f"{name}.txt").write_text(text)
    assert open_data(tmp_path).targets()[:, 7].tolist() == [1, 0]
    (main / "train.txt").write_text("1\n")
    (main / "val.txt").write_text("2\n")
    for name in lists:
        (main / f"{name}.txt").unlink()
    (main / "cat_train.txt").write_text("1  1\n")
    with pytest.raises(LabelwiseError, match=r"no per-label list .* says what is in the images of val\.txt"):
        open_data(tmp_path)


def test_an_object_without_a_name(tmp_path: Path, touch: Callable[..., Path]) -> None:
    touch("VOC2012/JPEGImages/1.jpg", "VOC2012/Annotations/x")
    (tmp_path / "VOC2012" / "Annotations" / "1.xml").write_text("<annotation><object></object></annotation>")
    with pytest.raises(LabelwiseError, match=r"1\.xml: an object has no name"):
        open_data(tmp_path)
