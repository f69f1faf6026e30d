"""Every format is written and read back; what a format cannot hold is an error or a note, never silence."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelwise.core.errors import LabelwiseError
from labelwise.data.conversion import TARGETS, convert
from labelwise.data.manifests import write_manifest
from labelwise.data.sources import open_data, open_images
from labelwise.data.stream_table import StreamTable
from labelwise.data.table import LabelTable

LABELS = ["hot dog", "ice cream", "zebra", "ant, red"]
KINDS = ("csv", "tsv", "jsonl", "parquet")


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    """Twelve pictures in three folders; the same file names occur in each folder."""
    images = []
    for row in range(12):
        path = tmp_path / "photos" / f"folder {row // 4}" / f"ü{row % 4}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 6), (row * 20, 0, 0)).save(path)
        images.append(str(path))
    return images


@pytest.fixture
def table(photos: list[str]) -> LabelTable:
    targets = np.random.default_rng(0).integers(0, 2, (12, 4))
    targets[:, 0] |= targets.sum(1) == 0
    targets[0], targets[1] = 1, 0  # one image with all labels, one with none
    return LabelTable.from_dense(photos, targets, LABELS, splits=["train"] * 6 + ["val"] * 2 + ["test"] * 4, source="x")


def same(read: LabelTable, table: LabelTable, *, paths: bool = True) -> None:
    """Equal up to the order of rows and labels: images are compared by what is in their files."""

    def content(of: LabelTable) -> dict[bytes, tuple[str, list[int]]]:
        ordered = of.with_labels(sorted(of.labels))
        return {
            Path(ordered.images[row]).read_bytes(): (ordered.splits[row], ordered.target(row).tolist())
            for row in range(len(ordered))
        }

    assert set(read.labels) == set(table.labels)
    assert len(read) == len(table)
    assert content(read) == content(table)
    if paths:
        assert {os.path.realpath(image) for image in read.images} == {os.path.realpath(image) for image in table.images}


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_manifests(table: LabelTable, kind: str, columns: bool, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow") if kind == "parquet" else None
    assert convert(table, kind, tmp_path / "out", columns=columns) == []
    same(open_data(tmp_path / "out" / f"labels.{kind}"), table)


@pytest.mark.parametrize("fill", [0, -1])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_manifests_keep_unknowns(photos: list[str], kind: str, columns: bool, fill: int, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow") if kind == "parquet" else None
    targets = np.random.default_rng(1).integers(-1, 2, (12, 4))
    dense = LabelTable.from_dense(photos, targets, LABELS)
    lists = [[[LABELS[c] for c in np.flatnonzero(row == value)] for row in targets] for value in (1, 0)]
    table = LabelTable.from_lists(photos, lists[0], LABELS, absent=lists[1], fill=-1) if fill else dense
    np.testing.assert_array_equal(table.targets(), targets)
    convert(table, kind, tmp_path / "out", columns=columns)
    same(open_data(tmp_path / "out" / f"labels.{kind}"), table)


@pytest.mark.parametrize(
    "labels",
    [
        ["a|b", "c", "d", "e"],
        ["[x]", "y", "z", "w"],
        ["{x}", "y", "('z')", "w"],
        ["a,b", "b,a", "a,a", "b,b"],
        ['say "hi"', "new\tcell", "ö", "x;y"],
    ],
)
@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_names_with_separators(table: LabelTable, labels: list[str], kind: str, tmp_path: Path) -> None:
    renamed = LabelTable.from_dense(table.images, table.targets(), labels, splits=table.splits)
    convert(renamed, kind, tmp_path / "out")
    same(open_data(tmp_path / "out" / f"labels.{kind}"), renamed)


def test_single_names_of_two_words_are_not_torn(photos: list[str], tmp_path: Path) -> None:
    names = [["hot dog"], ["hot air"], ["dog air"], ["hot dog"]] * 3  # few words, many cells: looks like tags
    table = LabelTable.from_lists(photos, names)
    convert(table, "csv", tmp_path / "out")
    same(open_data(tmp_path / "out" / "labels.csv"), table)


def test_labels_nobody_has_are_noted_or_kept(photos: list[str], tmp_path: Path) -> None:
    table = LabelTable.from_lists(photos, [["a", "b"]] * 12, ["a", "b", "never"])
    assert convert(table, "csv", tmp_path / "names") == [
        "1 label that no image has is gone (never); one column per label loses none"
    ]
    assert convert(table, "csv", tmp_path / "columns", columns=True) == []
    assert open_data(tmp_path / "columns" / "labels.csv").labels == ("a", "b", "never")


def test_coco(table: LabelTable, tmp_path: Path) -> None:
    notes = convert(table, "coco", tmp_path / "out")
    assert notes == ["1 image has no label: open the result with ?empty=keep, or such images are left out"]
    read = open_data(f"coco:{tmp_path / 'out'}?empty=keep")
    assert read.labels == table.labels
    same(read, table, paths=False)
    assert len(open_data(tmp_path / "out")) == 11


def test_coco_agrees_with_pycocotools(table: LabelTable, tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    convert(table, "coco", tmp_path / "out")
    api = coco.COCO(str(tmp_path / "out" / "annotations" / "instances_train.json"))
    names = {category["id"]: category["name"] for category in api.loadCats(api.getCatIds())}
    for image in api.loadImgs(api.getImgIds()):
        present = {names[entry["category_id"]] for entry in api.loadAnns(api.getAnnIds(image["id"]))}
        row = image["id"] - 1
        assert present == set(table.present(row))
        found = tmp_path / "out" / "train" / image["file_name"]
        assert found.read_bytes() == Path(table.images[row]).read_bytes()


def test_imagefolder(photos: list[str], tmp_path: Path) -> None:
    single = LabelTable.from_lists(photos, [["cat"], ["dog"], ["emu"]] * 4, splits=["train"] * 8 + ["val"] * 4)
    assert convert(single, "imagefolder", tmp_path / "out") == []
    read = open_data(tmp_path / "out")
    assert read.single_label
    same(read, single, paths=False)


def test_imagefolder_refuses_several_labels(table: LabelTable, tmp_path: Path) -> None:
    with pytest.raises(LabelwiseError, match="exactly one label per image, but"):
        convert(table, "imagefolder", tmp_path / "out")
    folds = LabelTable.from_lists(table.images, [["a"]] * 12, splits=["train", ""] * 6)
    with pytest.raises(LabelwiseError, match="train, val and test, or none, not 'train', ''"):
        convert(folds, "imagefolder", tmp_path / "folds")
    slash = LabelTable.from_lists(table.images, [["a/b"]] * 12)
    with pytest.raises(LabelwiseError, match="cannot be the name of a folder"):
        convert(slash, "imagefolder", tmp_path / "other")


def test_webdataset(photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("labelwise.data.conversion.SHARD_IMAGES", 3)
    targets = np.random.default_rng(1).integers(-1, 2, (12, 4))
    table = LabelTable.from_dense(photos, targets, LABELS, splits=["train", "val", "train"] * 4)
    assert convert(table, "webdataset", tmp_path / "out") == []
    files = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert files == [
        "index.json",
        "labels.txt",
        *(f"train-{n:06d}.tar" for n in range(3)),
        *(f"val-{n:06d}.tar" for n in range(2)),
    ]
    for split in ("train", "val"):
        shards = open_images(f"webdataset:{tmp_path / 'out'}").select(split)
        assert isinstance(shards, StreamTable)
        assert shards.labels == tuple(LABELS)
        rows = table.rows(split)
        assert [shards.image(n).data for n in range(len(rows))] == [Path(photos[row]).read_bytes() for row in rows]
        assert shards.targets().tolist() == targets[rows].tolist()


def test_webdataset_is_readable_by_the_package(table: LabelTable, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    convert(table, "webdataset", tmp_path / "out")
    stream = webdataset.WebDataset(str(tmp_path / "out" / "test-000000.tar"), shardshuffle=False).decode()
    assert [sample["json"]["labels"] for sample in stream] == [table.present(row) for row in table.rows("test")]


@pytest.mark.parametrize("to", ["coco", "imagefolder"])
def test_formats_without_unknown(photos: list[str], to: str, tmp_path: Path) -> None:
    table = LabelTable.from_lists(photos, [["a"]] * 12, unknown=[["b"]] * 12, source="photos.csv")
    with pytest.raises(LabelwiseError, match=r"^photos\.csv: .* unknown, and 12 values are;.*unknown='absent'"):
        convert(table, to, tmp_path / "out")
    convert(table, to, tmp_path / "out", unknown="absent")
    assert open_data(tmp_path / "out").positives_per_label()[0] == 12


def test_refused(table: LabelTable, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("x")
    with pytest.raises(LabelwiseError, match="not an empty folder"):
        convert(table, "csv", tmp_path / "full")
    with pytest.raises(LabelwiseError, match="did you mean 'parquet'"):
        convert(table, "parket", tmp_path / "out")
    with pytest.raises(LabelwiseError, match="one column per label is for csv"):
        convert(table, "coco", tmp_path / "out", columns=True)
    with pytest.raises(LabelwiseError, match="kind of manifest"):
        write_manifest(table, tmp_path / "labels.xlsx")
    clash = LabelTable.from_lists(table.images, [["image", "b"]] * 12)
    with pytest.raises(LabelwiseError, match="like a column of the manifest"):
        convert(clash, "csv", tmp_path / "clash", columns=True)
    assert len(TARGETS) == 7


def test_a_failed_write_leaves_the_old_file(table: LabelTable, tmp_path: Path) -> None:
    target = tmp_path / "labels.csv"
    target.write_text("old")
    clash = LabelTable.from_lists(table.images, [["image"]] * 12)
    with pytest.raises(LabelwiseError):
        write_manifest(clash, target, columns=True)
    assert target.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["labels.csv"]


def test_parquet_without_pyarrow(table: LabelTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(LabelwiseError, match=r"pip install 'labelwise\[parquet\]'"):
        convert(table, "parquet", tmp_path / "out")


def test_coco_notes_splits_that_it_cannot_keep(table: LabelTable, tmp_path: Path) -> None:
    names = ["train", "trainval", "test2", "val-unseen", "fold 1", "holdout"]
    renamed = table.with_splits([names[row % len(names)] for row in range(len(table))])
    used = set(renamed.splits)
    notes = convert(renamed, "coco", tmp_path / "coco")
    read = open_data(f"coco:{tmp_path / 'coco'}?empty=keep")
    assert set(read.split_names) - {""} == used - {"holdout"}
    assert [note for note in notes if "split" in note] == (
        ["the split 'holdout' is not read back: its name is not a usual one"] if "holdout" in used else []
    )


@pytest.mark.parametrize("name", ["tag", "Class", "fold", "Split", "image"])
def test_columns_that_would_be_read_as_something_else(photos: list[str], name: str, tmp_path: Path) -> None:
    table = LabelTable.from_lists(photos[:2], [[name], ["dog"]])
    with pytest.raises(LabelwiseError, match=f"a label is called '{name}' like a column"):
        convert(table, "csv", tmp_path / "out", columns=True)


def test_a_manifest_in_a_linked_folder_finds_its_images(photos: list[str], tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    write_manifest(LabelTable.from_lists(photos[:2], [["cat"], ["dog"]]), tmp_path / "link" / "l.csv")
    assert len(open_data(tmp_path / "link" / "l.csv")) == 2
    assert len(open_data(tmp_path / "deep" / "er" / "l.csv")) == 2


def test_an_image_folder_loses_labels_that_are_only_unknown(photos: list[str], tmp_path: Path) -> None:
    table = LabelTable.from_lists(photos[:1], [["cat"]], unknown=[["dog"]])
    notes = convert(table, "imagefolder", tmp_path / "out", unknown="absent")
    assert notes == ["1 label that no image has is gone (dog)"]


def test_shards_are_unpacked_with_splits_and_unknown_labels(photos: list[str], tmp_path: Path) -> None:
    unknown = [["zebra"] if row % 3 == 0 else [] for row in range(12)]
    splits = ["train" if row % 4 else "test" for row in range(12)]
    table = LabelTable.from_lists(photos, [[LABELS[row % 2]] for row in range(12)], splits=splits, unknown=unknown)
    convert(table, "webdataset", tmp_path / "shards")
    with pytest.raises(LabelwiseError, match="shards are unpacked as csv, tsv, jsonl, parquet"):
        convert(f"webdataset:{tmp_path / 'shards'}", "coco", tmp_path / "no")
    convert(f"webdataset:{tmp_path / 'shards'}", "csv", tmp_path / "out")
    back = open_data(tmp_path / "out" / "labels.csv")
    for split in ("train", "test"):
        expected, found = table.select(split), back.select(split)
        assert [Path(image).read_bytes() for image in found.images] == [Path(i).read_bytes() for i in expected.images]
        assert found.with_labels(table.labels).targets().tolist() == expected.targets().tolist()
