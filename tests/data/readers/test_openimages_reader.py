"""Small files in the format of https://storage.googleapis.com/openimages/web/download_v7.html"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from labelwise.core.errors import LabelwiseError
from labelwise.data import open_data

HEADER = "ImageID,Source,LabelName,Confidence\n"
ONE, TWO, THREE = "000002b66c9c498e", "ffff02b97e5330f9", "00075905539074f2"


@pytest.fixture
def folder(touch: Callable[..., Path]) -> Path:
    root = touch(f"train/{ONE}.jpg", f"train/{TWO}.jpg", f"validation/{THREE}.jpg")
    (root / "oidv6-train-annotations-human-imagelabels.csv").write_text(
        HEADER
        + f"{TWO},verification,/m/01g317,1\n"
        + f"{ONE},verification,/m/012mj,0\n"
        + f"{ONE},crowdsource-verification,/m/01g317,1\n"
        + f"{TWO},verification,/m/0152hh,0\n"
        + f"{ONE},verification,/m/0152hh,1\n"
        + f"{ONE},verification,/m/0152hh,0\n"  # present wins where humans differ
        + f"{ONE},verification,/m/09999,1\n"  # in no class list
    )
    (root / "validation-annotations-human-imagelabels.csv").write_text(HEADER + f"{THREE},verification,/m/012mj,1\n")
    (root / "train-annotations-machine-imagelabels.csv").write_text(
        HEADER + f"{TWO},machine,/m/0152hh,0.9\n{TWO},machine,/m/012mj,0.8\n{ONE},machine,/m/012mj,0.9\n"
    )
    (root / "oidv6-class-descriptions.csv").write_text(
        'LabelName,DisplayName\n/m/012mj,"Beer, wine"\n/m/0152hh,Snapshot\n/m/01g317,Person\n/m/0z,Person\n'
    )
    return root


def test_verified_labels_and_everything_else_unknown(folder: Path) -> None:
    table = open_data(folder)
    assert table.labels == ("Beer, wine", "Snapshot", "Person (/m/01g317)", "Person (/m/0z)")
    assert table.fill == -1
    assert table.splits == ["train", "train", "val"]
    assert table.images == [
        f"{folder}/train/{ONE}.jpg",
        f"{folder}/train/{TWO}.jpg",
        f"{folder}/validation/{THREE}.jpg",
    ]
    assert table.targets().tolist() == [[0, 1, 1, -1], [-1, 0, 1, -1], [1, -1, -1, -1]]


def test_machine_labels_above_a_threshold_never_overrule_humans(folder: Path) -> None:
    assert open_data(folder, machine_threshold=0.85).targets().tolist()[:2] == [[0, 1, 1, -1], [-1, 0, 1, -1]]
    assert open_data(f"openimages:{folder}?machine_threshold=0.8").target(1).tolist() == [1, 0, 1, -1]


def test_trainable_classes_fix_labels_and_order(folder: Path) -> None:
    (folder / "oidv6-classes-trainable.txt").write_text("/m/01g317\n/m/0152hh\n")
    table = open_data(folder)
    assert table.labels == ("Person", "Snapshot")
    assert table.targets().tolist() == [[1, 1], [1, 0]]  # the third image has no trainable label
    assert len(open_data(folder, classes="all").labels) == 4


def test_without_descriptions_the_ids_are_the_names(folder: Path) -> None:
    (folder / "oidv6-class-descriptions.csv").unlink()
    assert open_data(folder).labels == ("/m/012mj", "/m/0152hh", "/m/01g317", "/m/09999")
    with pytest.raises(LabelwiseError, match="no list of trainable classes"):
        open_data(folder, classes="trainable")


def test_csv_files_in_a_folder_of_their_own(folder: Path) -> None:
    expected = open_data(folder).targets().tolist()
    (folder / "metadata").mkdir()
    for file in folder.glob("*.csv"):
        file.rename(folder / "metadata" / file.name)
    assert open_data(folder).targets().tolist() == expected


def test_only_some_images_are_downloaded(folder: Path) -> None:
    (folder / "train" / f"{TWO}.jpg").unlink()
    with pytest.raises(LabelwiseError, match=f"{TWO}.jpg' does not exist"):
        open_data(folder)
    assert len(open_data(folder, check_files="drop")) == 2


def test_memory_per_line(tmp_path: Path) -> None:
    """The real file has 60 million lines; docs/reference/data-formats.md states this bound."""
    images, per_image, classes = 10_000, 7, 500
    lines = (
        f"{image * 7919:016x},verification,/m/{(image * 31 + n * 71) % classes:04d},{n % 2}\n"
        for image in range(images)
        for n in range(per_image)
    )
    (tmp_path / "oidv6-train-annotations-human-imagelabels.csv").write_text(HEADER + "".join(lines))
    (tmp_path / "oidv6-classes-trainable.txt").write_text("\n".join(f"/m/{n:04d}" for n in range(classes)))
    open_data(tmp_path, check_files="no")  # imports and caches are not what is measured
    tracemalloc.start()
    table = open_data(tmp_path, check_files="no")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table.columns) == images * per_image
    assert peak / (images * per_image) < 90


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + f"{ONE},verification,/m/012mj,0.5\n", "line 2: a human label has confidence 0 or 1, not 0.5"),
        (HEADER + f"{ONE},verification,/m/012mj\n", "line 2: expected 4 fields, not 3"),
        (HEADER + "photo1,verification,/m/012mj,1\n", "line 2: invalid literal"),
        ("Image,Label\n", "line 1: expected ImageID,Source,LabelName,Confidence"),
    ],
)
def test_mistakes_name_the_line(folder: Path, text: str, message: str) -> None:
    (folder / "oidv6-train-annotations-human-imagelabels.csv").write_text(text)
    with pytest.raises(LabelwiseError, match=message):
        open_data(folder)
