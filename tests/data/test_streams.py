"""Shards and datasets that the test really writes, with the libraries people write them with, as tables."""

from __future__ import annotations

import gzip
import json
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwise.core.errors import LabelwiseError
from labelwise.data.images import BadImageError
from labelwise.data.sources import open_images
from labelwise.data.streams import open_shard
from stream_kit import LABELS, check, labels_of, numbered, opened, png, target_of, write_tar


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 samples in 4 shards, written by the webdataset package."""
    webdataset = pytest.importorskip("webdataset")
    folder = tmp_path_factory.mktemp("shards")
    with webdataset.ShardWriter(str(folder / "train-%06d.tar"), maxcount=6, verbose=0) as writer:
        for number in range(23):
            writer.write({"__key__": f"{number:04d}", "jpg": png(number), "json": {"labels": labels_of(number)}})
    assert len(list(folder.glob("*.tar"))) == 4
    return folder


def test_shards_by_pattern_folder_and_glob(shards: Path) -> None:
    for data in (f"{shards}/train-{{000000..000003}}.tar", f"webdataset:{shards}", f"{shards}/train-*.tar"):
        check(opened(data, labels=LABELS))
    check(opened(f"stream:{shards}?labels=cat,dog,cow"))
    table = opened(f"webdataset:{shards}", labels=LABELS)
    assert table.split_names == ("train",)
    check(pickle.loads(pickle.dumps(table)))  # as for workers that are not forked


def test_the_same_samples_as_the_webdataset_package(shards: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    files = sorted(str(file) for file in shards.glob("*.tar"))
    theirs = [
        (sample["__key__"], sample["jpg"], json.loads(sample["json"])["labels"])
        for sample in webdataset.WebDataset(files, shardshuffle=False, nodesplitter=None)
    ]
    table = opened(f"webdataset:{shards}", labels=LABELS)
    ours = [
        (
            table.images[row].rsplit("/", 1)[1],
            table.image(row).data,
            [LABELS[c] for c in np.flatnonzero(table.target(row))],
        )
        for row in range(len(table))
    ]
    assert ours == theirs


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x/1.cls", "2", [0, 0, 1]),
        ("x/1.cls", "cow", [0, 0, 1]),
        ("x/1.txt", "cat\ndog\n", [1, 1, 0]),
        ("x/1.txt", "cat, cow", [1, 0, 1]),
        ("x/1.json", '["dog"]', [0, 1, 0]),
        ("x/1.json", '{"tags": "dog", "width": 3}', [0, 1, 0]),
        ("x/1.json", '{"labels": [0], "unknown": ["dog"]}', [1, -1, 0]),
        ("x/1.json", '{"labels": {"cat": 0, "dog": 1, "cow": -1}}', [0, 1, -1]),
    ],
)
def test_label_files_in_shards(tmp_path: Path, name: str, content: str, expected: list[int]) -> None:
    write_tar(tmp_path / "a.tar", {"x/1.png": png(1), name: content, "x/._1.png": b"macOS"})
    (tmp_path / "labels.txt").write_text("cat\ndog\ncow\n")
    table = opened(tmp_path / "a.tar")
    assert (table.targets().tolist(), list(table.images)) == ([expected], [f"{tmp_path}/a.tar/x/1"])


def test_labels_that_nobody_looked_for_can_be_unknown(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.png": png(1), "1.json": '{"labels": ["cat"], "absent": ["cow"]}'})
    assert opened(f"{tmp_path}/a.tar?unlisted=unknown", labels=LABELS).targets().tolist() == [[1, -1, 0]]


def test_fewer_labels_than_the_shards_have(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.png": png(1), "1.json": '["cat", 2]'})
    (tmp_path / "labels.txt").write_text("cat\ndog\ncow\n")
    table = opened(tmp_path / "a.tar", labels=["cow", "dog"])
    assert table.targets().tolist() == [[1, 0]]
    more = table.with_labels(["fox", "cow"], missing="unknown")  # as for a model that knows another label
    assert more.targets().tolist() == [[-1, 1]]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1.png": png(1), "1.txt": "catt"}, r"a\.tar/1: unknown label 'catt'; did you mean 'cat'\?"),
        ({"1.png": png(1), "1.cls": "3"}, r"a\.tar/1: label number 3, but there are 3 labels, from 0"),
        ({"1.png": png(1)}, r"sample '1' has no labels: looked for \.json, \.cls and \.txt"),
        ({"1.cls": "0"}, r"sample '1' has no image, only \.cls"),
        ({"1.png": png(1), "1.json": "{"}, r"\.json of sample '1' is not JSON"),
        ({"1.png": png(1), "1.json": "{}"}, r"\.json of sample '1' has no 'labels'"),
        ({"1.png": png(1), "1.json": "[1.5]"}, r"\.json of sample '1': labels are names, or numbers from 0, not 1\.5"),
        (
            {"1.png": png(1), "1.json": '{"labels": {"cat": 2}}'},
            r"1 \(present\), 0 \(absent\) or -1 \(unknown\), not 2",
        ),
    ],
)
def test_mistakes_in_shards(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(LabelwiseError, match=message) as caught:
        opened(write_tar(tmp_path / "a.tar", files), labels=LABELS).targets()
    assert "\n" not in str(caught.value)


def test_a_damaged_shard_is_not_taken_for_a_shorter_one(tmp_path: Path) -> None:
    """tarfile itself takes each of these for the end of the archive."""
    whole = write_tar(tmp_path / "whole.tar", numbered(range(6)))
    with tarfile.open(whole) as archive:
        header = archive.getmembers()[6].offset
    content = whole.read_bytes()
    zipped = bytearray(gzip.compress(content))
    zipped[-8] ^= 1  # of the checksum
    damaged = {
        "junk.tar": content[:header] + b"?" * 512 + content[header + 512 :],
        "zeros.tar": content[:header] + bytes(512) + content[header + 512 :],
        "cut-before.tar": content[:header],
        "cut-inside.tar": content[: header + 100],
        "checksum.tar.gz": bytes(zipped),
    }
    for name, data in damaged.items():
        (tmp_path / name).write_bytes(data)
        refused = pytest.raises(LabelwiseError, match=f"{name} is not a readable tar file")
        with refused, open_shard(str(tmp_path / name)) as archive:
            list(archive)
        with pytest.raises(LabelwiseError, match=rf"{name} is not a readable .*leave such shards out: damaged=skip"):
            opened(tmp_path / name, labels=LABELS)
    (tmp_path / "good.tgz").write_bytes(gzip.compress(content))
    for name in ("whole.tar", "good.tgz"):
        check(opened(tmp_path / name, labels=LABELS), 6)


def test_damaged_shards_are_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("labelwise.core.errors.listeners", [told.append])
    write_tar(tmp_path / "0.tar", numbered(range(4)))
    (tmp_path / "1.tar").write_bytes(b"x" * 2000)
    check(opened(f"webdataset:{tmp_path}?damaged=skip", labels=LABELS), 4)
    assert told[0].startswith("1 shard is damaged and left out, the first: the shard")


def test_a_shard_that_breaks_later_costs_its_images(tmp_path: Path) -> None:
    for number in range(2):
        write_tar(tmp_path / f"{number}.tar", numbered(range(4 * number, 4 * number + 4)))
    table = opened(f"webdataset:{tmp_path}", labels=LABELS)
    (tmp_path / "1.tar").unlink()
    assert table.image(3).data == png(3)
    with pytest.raises(BadImageError, match=r"1\.tar' cannot be decoded \(its shard cannot be read"):
        table.image(4)


def test_a_damaged_index_is_written_again(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", numbered(range(5)))
    check(opened(tmp_path / "a.tar", labels=LABELS), 5)
    [index] = (tmp_path / "cache" / "streams").glob("*/index.npz")
    index.write_bytes(index.read_bytes()[:100])
    check(opened(tmp_path / "a.tar", labels=LABELS), 5)


def test_counts_come_from_the_index_or_are_stated(tmp_path: Path) -> None:
    """Then no shard is opened before it is needed."""
    for number in range(3):
        write_tar(tmp_path / f"train-{number}.tar", numbered(range(4 * number, min(4 * number + 4, 10))))
    index = {"shardlist": [{"url": f"train-{n}.tar", "nsamples": count} for n, count in enumerate((4, 4, 2))]}
    (tmp_path / "index.json").write_text(json.dumps(index))
    table = opened(f"webdataset:{tmp_path}", labels=LABELS)
    assert not (tmp_path / "cache" / "streams").exists()
    check(table, 10)
    (tmp_path / "index.json").write_text("{}")
    check(opened(f"webdataset:{tmp_path}?samples=4", labels=LABELS), 10)
    with pytest.raises(LabelwiseError, match=r"train-0\.tar has 4 samples, but 5 were stated"):
        opened(f"webdataset:{tmp_path}?samples=5", labels=LABELS).target(0)


def test_opening_mistakes(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", numbered(range(2)))
    for data, message in {
        f"{tmp_path}/b.tar": r"no such file or folder: .*b\.tar",
        f"{tmp_path}/{{a,b}}.tar": r"no such file or folder: .*b\.tar",
        f"{tmp_path}/z*.tar": r"no such file or folder",
        f"{tmp_path}/a.tar?shufle=3": r"stream .*a.tar: unknown option 'shufle'; did you mean 'shuffle'\?",
        f"{tmp_path}/a.tar?shuffle=0": "shuffle",
        f"{tmp_path}/a.tar?labels=dog,dog": "label 'dog' is listed twice",
    }.items():
        with pytest.raises(LabelwiseError, match=message):
            open_images(data, labels=None if "labels=" in data else LABELS)
    with pytest.raises(LabelwiseError, match=r"does not say which labels there are; add labels="):
        open_images(tmp_path / "a.tar")


def test_a_held_out_share_is_drawn_from_every_shard(shards: Path) -> None:
    table = opened(f"webdataset:{shards}", labels=LABELS)
    train, held = table.held_out(0.2, seed=0)
    names = [*train.images, *held.images]
    assert sorted(names) == sorted(table.images)
    assert (len(train), len(held)) == (19, 4)
    assert len({name.rsplit("/", 1)[0] for name in held.images}) == 4
    assert (
        list(held.images) == list(table.held_out(0.2, seed=0)[1].images) != list(table.held_out(0.2, seed=1)[1].images)
    )
    number = int(held.images[0][-4:])
    assert (held.image(0).data, held.target(0).tolist()) == (png(number), target_of(number))


# ---- copies in the cache


def test_shards_that_cannot_be_read_at_random_are_copied_within_the_limit(tmp_path: Path) -> None:
    for number in range(6):
        write_tar(tmp_path / f"{number}.tgz", numbered(range(4 * number, min(4 * number + 4, 23))))
    limit = 2 * sum(len(png(0)) + 20 for _ in range(4)) / 1e9
    table = opened(f"stream:{tmp_path}/*.tgz?cache_gb={limit}", labels=LABELS)
    check(table)
    copies = list((tmp_path / "cache" / "streams").glob("*/samples"))
    assert 1 <= len(copies) <= 2
    check(opened(f"stream:{tmp_path}/*.tgz?cache_gb={limit}", labels=LABELS))  # some of them are copied again


@pytest.fixture
def bucket() -> Iterator[str]:
    import fsspec

    system = fsspec.filesystem("memory")
    yield "memory://bucket-streams"
    system.rm("/bucket-streams", recursive=True)


def test_shards_in_a_bucket(tmp_path: Path, bucket: str) -> None:
    import fsspec

    for number in range(3):
        local = write_tar(tmp_path / "a.tar", numbered(range(8 * number, min(8 * number + 8, 23))))
        with fsspec.open(f"{bucket}/train-{number}.tar", "wb") as file:
            file.write(local.read_bytes())
    with fsspec.open(f"{bucket}/labels.txt", "wb") as file:
        file.write(b"cat\ndog\ncow\n")
    for data in (f"{bucket}/train-*.tar", f"{bucket}/train-{{0..2}}.tar", f"stream:{bucket}/train-*.tar"):
        check(opened(data))
