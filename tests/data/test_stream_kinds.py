"""Parquet, lists of paths, labels in a table of their own and Hugging Face datasets, really written, as tables."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest

from labelwise.core.errors import LabelwiseError
from labelwise.data.sources import open_images
from labelwise.data.table import LabelTable
from stream_kit import LABELS, check, labels_of, numbered, opened, png, rows, target_of, write_parquet, write_tar


def test_parquet_with_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelwise.data.shard_kinds.ROWS_PER_SHARD", 4)
    file = write_parquet(tmp_path / "train-0.parquet", rows())
    for data in (file, f"{tmp_path}/train-*.parquet"):
        check(opened(data, labels=LABELS))
    table = opened(file, labels=LABELS)
    assert (len(table.shards), table.split_names) == (7, ("train",))  # 7 = 4 + 3 rows of a group
    raw = rows() | {
        "image": [png(number) for number in range(23)],
        "labels": ["|".join(labels_of(n)) for n in range(23)],
    }
    check(opened(write_parquet(tmp_path / "raw.parquet", raw), labels=LABELS))


def test_parquet_with_paths_is_a_table_or_a_stream(tmp_path: Path) -> None:
    for number in range(23):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    paths = {"image": [f"{n}.png" for n in range(23)], "labels": ["|".join(labels_of(n)) for n in range(23)]}
    file = write_parquet(tmp_path / "photos.parquet", paths)
    assert isinstance(open_images(file), LabelTable)
    table = opened(f"stream:{file}", labels=LABELS)
    assert [table.image(row).data for row in range(23)] == [png(number) for number in range(23)]
    assert table.targets().tolist() == [target_of(number) for number in range(23)]


def test_a_list_of_paths_with_labels_in_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelwise.data.shard_kinds.LINES_PER_SHARD", 5)
    (tmp_path / "images").mkdir()
    for number in range(23):
        (tmp_path / "images" / f"{number:04d}.png").write_bytes(png(number))
    lines = [f"images/{number:04d}.png" for number in range(23)]
    (tmp_path / "list.txt").write_text("\n".join([*lines[:9], "", *lines[9:]]))
    side = rows()
    del side["image"]
    labels = write_parquet(tmp_path / "labels.parquet", side)
    table = opened(f"stream:{tmp_path}/list.txt?labels_from={labels}", labels=LABELS)
    assert len(table.shards) == 5
    assert [table.image(row).data for row in range(23)] == [png(number) for number in range(23)]
    assert table.targets().tolist() == [target_of(number) for number in range(23)]
    assert pickle.loads(pickle.dumps(table)).target(3).tolist() == target_of(3)


def test_labels_of_shards_in_a_table(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", numbered(range(23), labelled=False))
    side = rows() | {"absent": [["cow"]] * 23}
    side["labels"] = [["dog"]] * 23
    del side["image"]
    labels = write_parquet(tmp_path / "labels.parquet", side)
    table = opened(f"{tmp_path}/a.tar?labels_from={labels}&unlisted=unknown", labels=LABELS)
    assert table.targets([0, 22]).tolist() == [[-1, 1, 0]] * 2
    few = write_parquet(tmp_path / "few.parquet", {name: values[:5] for name, values in side.items()})
    with pytest.raises(LabelwiseError, match=r"few\.parquet has no row for the sample '0007'; add it"):
        opened(f"{tmp_path}/a.tar?labels_from={few}", labels=LABELS).target(7)
    twice = write_parquet(tmp_path / "twice.parquet", {"key": ["1", "1"], "labels": [["cat"], ["dog"]]})
    with pytest.raises(LabelwiseError, match="a key in column 'key' is there twice"):
        opened(f"{tmp_path}/a.tar?labels_from={twice}", labels=LABELS)
    with pytest.raises(LabelwiseError, match=r"has no key column among key, labels, absent; name it"):
        opened(f"{tmp_path}/a.tar?labels_from={labels}&key_column=name", labels=LABELS)


# ---- Hugging Face datasets


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in three local forms: saved to disk, a folder of Parquet files, and one of JSON lines (streamed)."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    folder = tmp_path_factory.mktemp("hf")
    features = datasets.Features(
        {
            "id": datasets.Value("string"),
            "image": datasets.Image(),
            "labels": datasets.List(datasets.ClassLabel(names=LABELS)),
        }
    )
    numbers = [[bit for bit in range(3) if number >> bit & 1] for number in range(23)]
    content = rows() | {"id": [str(number) for number in range(23)], "labels": numbers}
    del content["key"]
    dataset = datasets.Dataset.from_dict(content, features=features)
    datasets.DatasetDict({"train": dataset, "validation": dataset.select(range(5))}).save_to_disk(str(folder / "disk"))
    dataset.to_parquet(str(folder / "parquet" / "train.parquet"))
    (folder / "lines").mkdir()
    images = folder / "images"
    images.mkdir()
    for number in range(23):
        (images / f"{number}.png").write_bytes(png(number))
    records = [{"image": str(images / f"{n}.png"), "labels": labels_of(n)} for n in range(23)]
    (folder / "lines" / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.mark.parametrize("form", ["disk", "parquet", "lines"])
def test_hugging_face_datasets(saved: Path, form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr("labelwise.data.shard_kinds.ROWS_PER_SHARD", 6)
    table = opened(f"hf:{saved / form}", labels=None if form != "lines" else LABELS)
    assert table.labels == tuple(LABELS)
    train = table.select("train")
    assert [train.image(row).data for row in range(23)] == [png(number) for number in range(23)]
    assert train.targets().tolist() == [target_of(number) for number in range(23)]
    assert opened(f"hf:{saved / form}", labels=["cow"]).target(4).tolist() == [1]


def test_hugging_face_splits_and_columns(saved: Path) -> None:
    table = opened(f"hf:{saved / 'disk'}")
    assert table.split_names == ("train", "val")
    check(table.select("val"), expected=5)
    with pytest.raises(LabelwiseError, match=r"unknown split 'test'; choose one of train, val"):
        table.select("test")
    with pytest.raises(LabelwiseError, match=r"has no label column 'tags': it has image, labels, id; name one of them"):
        opened(f"hf:{saved / 'disk'}?label_column=tags")


def test_without_the_datasets_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LabelwiseError, match=r"pip install 'labelwise\[streaming\]'"):
        opened("hf:photos")
