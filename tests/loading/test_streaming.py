"""Streams from shards and datasets that the test really writes, with the libraries people write them with."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from labelwise.core.errors import LabelwiseError
from labelwise.data.streams import Reader, open_shard
from labelwise.loading.stream import LabelStream, StreamLoader, open_stream

LABELS = ["cat", "dog", "cow"]


def jpeg(number: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (8, 6), (number * 8, 0, 255)).save(data, "PNG")  # the decoder looks at the bytes, not at the name
    return data.getvalue()


def to_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)  # [3, H, W]


def labels_of(number: int) -> list[str]:
    return [name for bit, name in enumerate(LABELS) if number >> bit & 1]


def target_of(number: int) -> list[int]:
    return [number >> bit & 1 for bit in range(3)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 samples in 4 shards, written by the webdataset package."""
    webdataset = pytest.importorskip("webdataset")
    folder = tmp_path_factory.mktemp("shards")
    with webdataset.ShardWriter(str(folder / "train-%06d.tar"), maxcount=6, verbose=0) as writer:
        for number in range(23):
            writer.write({"__key__": f"{number:04d}", "jpg": jpeg(number), "json": {"labels": labels_of(number)}})
    assert len(list(folder.glob("*.tar"))) == 4
    return folder


def number_of(key: str) -> int:
    return int(key.rsplit("/", 1)[1])


def check(stream: LabelStream, expected: int = 23) -> None:
    samples = list(stream)
    assert sorted(number_of(sample.key) for sample in samples) == list(range(expected))
    for image, target, key in samples:
        assert image[:, 0, 0].tolist() == [number_of(key) * 8, 0, 255]
        assert target.dtype == torch.int8
        assert target.tolist() == target_of(number_of(key))


def test_shards_by_pattern_folder_and_glob(shards: Path) -> None:
    for data in (f"{shards}/train-{{000000..000003}}.tar", f"webdataset:{shards}", f"{shards}/train-*.tar"):
        check(open_stream(data, to_tensor, labels=LABELS))
    check(open_stream(f"webdataset:{shards}?labels=cat,dog,cow&shuffle=5", to_tensor))


def test_the_same_samples_as_the_webdataset_package(shards: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    files = sorted(str(file) for file in shards.glob("*.tar"))
    theirs = [
        (sample["__key__"], sample["jpg"], json.loads(sample["json"])["labels"])
        for sample in webdataset.WebDataset(files, shardshuffle=False, nodesplitter=None)
    ]
    ours = open_stream(f"webdataset:{shards}", to_tensor, labels=LABELS).source.samples(Reader(), None)
    assert [(sample.key.rsplit("/", 1)[1], sample.image, sample.present) for sample in ours] == theirs


@pytest.mark.parametrize(("ranks", "workers"), [(1, 3), (2, 2), (3, 4), (5, 1)])
def test_readers_share_everything_exactly_once(shards: Path, ranks: int, workers: int) -> None:
    source = open_stream(f"webdataset:{shards}", to_tensor, labels=LABELS).source
    parts = [
        [sample.key for sample in source.samples(Reader(rank, ranks, worker, workers), None)]
        for rank in range(ranks)
        for worker in range(workers)
    ]
    keys = [key for part in parts for key in part]
    assert len(keys) == len(set(keys)) == 23
    # No reader idles: whole shards (6, 6, 6, 5) where there are enough of them, else an equal share of all.
    assert min(len(part) for part in parts) == (5 if len(parts) == 4 else 6 if len(parts) < 4 else 23 // len(parts))


@pytest.mark.parametrize("rank", [0, 1])
def test_real_workers_of_a_distributed_process(shards: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    stream = open_stream(f"webdataset:{shards}", to_tensor, labels=LABELS)
    batches = list(StreamLoader(stream, batch_size=4, num_workers=2))
    keys = [number_of(key) for batch in batches for key in batch.key]
    # 4 shards for 4 readers: rank 0 reads shards 0 and 1, rank 1 shards 2 and 3
    assert sorted(keys) == (list(range(12)) if rank == 0 else list(range(12, 23)))
    for image, target, batch_keys in batches:
        assert image.shape[1:] == (3, 6, 8)
        assert target.tolist() == [target_of(number_of(key)) for key in batch_keys]


def test_shuffle_changes_with_the_epoch_and_repeats_with_the_seed(shards: Path) -> None:
    def order(epoch: int, **options: Any) -> list[str]:
        stream = open_stream(f"webdataset:{shards}", to_tensor, labels=LABELS, **options)
        stream.set_epoch(epoch)
        return [sample.key for sample in stream]

    first = order(0, shuffle=8)
    assert first == order(0, shuffle=8)
    assert len({tuple(first), tuple(order(1, shuffle=8)), tuple(order(0, shuffle=8, seed=1)), tuple(order(0))}) == 4
    assert Counter(first) == Counter(order(0))


def write_tar(path: Path, files: dict[str, bytes | str]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


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
    ],
)
def test_label_files_in_shards(tmp_path: Path, name: str, content: str, expected: list[int]) -> None:
    write_tar(tmp_path / "a.tar", {"x/1.png": jpeg(1), name: content, "x/._1.png": b"macOS"})
    (tmp_path / "labels.txt").write_text("cat\ndog\ncow\n")
    [sample] = open_stream(tmp_path / "a.tar", to_tensor)
    assert (sample.target.tolist(), sample.key) == (expected, f"{tmp_path}/a.tar/x/1")


def test_fewer_labels_than_the_shards_have(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.png": jpeg(1), "1.json": '["cat", 2]'})
    (tmp_path / "labels.txt").write_text("cat\ndog\ncow\n")
    [sample] = open_stream(tmp_path / "a.tar", to_tensor, labels=["cow", "dog"])
    assert sample.target.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1.png": b"no picture", "1.cls": "0"}, r"image '.*a\.tar/1' cannot be decoded.*on_bad_image='skip'"),
        ({"1.png": jpeg(1), "1.txt": "catt"}, r"a\.tar/1: unknown label 'catt'; did you mean 'cat'\?"),
        ({"1.png": jpeg(1), "1.cls": "3"}, r"a\.tar/1: label number 3, but there are 3 labels, from 0"),
        ({"1.png": jpeg(1)}, r"sample '1' has no labels: looked for \.json, \.cls and \.txt"),
        ({"1.cls": "0"}, r"sample '1' has no image, only \.cls"),
        ({"1.png": jpeg(1), "1.json": "{"}, r"\.json of sample '1' is not JSON"),
        ({"1.png": jpeg(1), "1.json": "{}"}, r"\.json of sample '1' has no 'labels'"),
    ],
)
def test_mistakes_in_shards(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    stream = open_stream(write_tar(tmp_path / "a.tar", files), to_tensor, labels=LABELS)
    with pytest.raises(LabelwiseError, match=message) as caught:
        list(StreamLoader(stream))
    assert "\n" not in str(caught.value)


def test_a_damaged_shard_is_not_taken_for_a_shorter_one(tmp_path: Path) -> None:
    """tarfile itself takes each of these for the end of the archive."""
    files: dict[str, bytes | str] = {}
    for number in range(6):
        files |= {f"{number}.jpg": jpeg(number), f"{number}.txt": "cat"}
    whole = write_tar(tmp_path / "whole.tar", files)
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
    (tmp_path / "good.tgz").write_bytes(gzip.compress(content))
    for name in ("whole.tar", "good.tgz"):
        with open_shard(str(tmp_path / name)) as archive:
            assert len(list(archive)) == 12


def test_options_of_a_stream_are_checked(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.png": jpeg(1), "1.json": "[1.5]"})
    for options, message in (
        ({"on_bad_image": "skipp"}, "did you mean 'skip'"),
        ({"labels": ["dog", "dog"]}, "label 'dog' is listed twice"),
        ({"shuffle": -1}, "shuffle"),
    ):
        with pytest.raises(LabelwiseError, match=message):
            open_stream(tmp_path / "a.tar", to_tensor, **{"labels": LABELS, **options})  # type: ignore[arg-type]
    stream = open_stream(tmp_path / "a.tar", to_tensor, labels="cat,dog")
    assert stream.labels == ("cat", "dog")
    with pytest.raises(LabelwiseError, match=r"a\.tar: the \.json of sample '1': labels are names, or numbers from 0"):
        list(stream)
    write_tar(tmp_path / "b.tar", {"1.png": jpeg(1), "1.json": '["cat", null]'})
    with pytest.raises(LabelwiseError, match="not None"):
        list(open_stream(tmp_path / "b.tar", to_tensor, labels=LABELS))


def test_mistakes_met_by_a_worker_stay_one_line(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.png": jpeg(1), "1.txt": "catt"})
    stream = open_stream(tmp_path / "a.tar", to_tensor, labels=LABELS)
    with pytest.raises(LabelwiseError) as caught:
        list(StreamLoader(stream, num_workers=1))
    assert str(caught.value) == f"{tmp_path}/a.tar/1: unknown label 'catt'; did you mean 'cat'? (cat, dog, cow)"


def test_broken_images_are_skipped_and_counted_across_workers(tmp_path: Path) -> None:
    for shard in range(2):
        bad = {f"{n}.jpg": b"no picture" if n % 2 else jpeg(n) for n in range(6)}
        files = {
            name: content for n in range(6) for name, content in ((f"{n}.jpg", bad[f"{n}.jpg"]), (f"{n}.cls", "0"))
        }
        write_tar(tmp_path / f"{shard}.tar", files)
    stream = open_stream(f"webdataset:{tmp_path}", to_tensor, labels=LABELS, on_bad_image="skip")
    batches = list(StreamLoader(stream, batch_size=3, num_workers=2))
    assert sum(len(batch.key) for batch in batches) == 6
    assert stream.bad_images == 6


def test_opening_mistakes(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"x" * 2000)
    for data, message in {
        f"{tmp_path}/b.tar": r"shard .*b\.tar does not exist",
        f"{tmp_path}/{{a,b}}.tar": r"shard .*b\.tar does not exist",
        f"{tmp_path}/z*.tar": r"no shards match",
        f"{tmp_path}/a.tar?shufle=3": r"stream .*a.tar\?shufle=3: unknown option 'shufle'; did you mean 'shuffle'\?",
        "photos.csv": r"photos\.csv is not a stream",
    }.items():
        with pytest.raises(LabelwiseError, match=message):
            open_stream(data, to_tensor, labels=LABELS)
    with pytest.raises(LabelwiseError, match=r"does not say which labels there are; give labels="):
        open_stream(tmp_path / "a.tar", to_tensor)
    with pytest.raises(LabelwiseError, match=r"a\.tar is not a readable tar file"):
        list(open_stream(tmp_path / "a.tar", to_tensor, labels=LABELS))


# ---- Hugging Face datasets


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in both local forms: saved to disk, and a folder of Parquet files."""
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
    rows = {
        "id": [str(number) for number in range(23)],
        "image": [{"bytes": jpeg(number), "path": None} for number in range(23)],
        "labels": [[bit for bit in range(3) if number >> bit & 1] for number in range(23)],
    }
    dataset = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": dataset, "validation": dataset.select(range(5))}).save_to_disk(str(folder / "disk"))
    dataset.to_parquet(str(folder / "parquet" / "train.parquet"))
    return folder


@pytest.mark.parametrize("form", ["disk", "parquet"])
def test_hugging_face_datasets(saved: Path, form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    stream = open_stream(f"hf:{saved / form}", to_tensor)
    assert stream.labels == tuple(LABELS)
    check(stream)
    check(open_stream(f"hf:{saved / form}?shuffle=6", to_tensor))
    some = open_stream(f"hf:{saved / form}", to_tensor, labels=["cow"])
    assert [sample.target.tolist() for sample in some] == [[number >> 2 & 1] for number in range(23)]


def test_hugging_face_splits_and_columns(saved: Path) -> None:
    check(open_stream(f"hf:{saved / 'disk'}?split=val", to_tensor), expected=5)
    with pytest.raises(LabelwiseError, match=r"^hf:.*: unknown split 'test'; choose one of train, validation"):
        open_stream(f"hf:{saved / 'disk'}", to_tensor, split="test")
    with pytest.raises(LabelwiseError, match=r"has no label column: it has id, image, labels; add label_column="):
        open_stream(f"hf:{saved / 'disk'}", to_tensor, label_column="tags")


def test_without_the_datasets_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LabelwiseError, match=r"pip install 'labelwise\[streaming\]'"):
        open_stream("hf:photos", to_tensor)


@pytest.mark.parametrize("world_size", [1, 2])
def test_hugging_face_rows_once_over_ranks_and_real_workers(
    saved: Path, monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    numbers: list[int] = []
    for rank in range(world_size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))
        stream = open_stream(f"hf:{saved / 'disk'}", to_tensor, shuffle=4)
        own = [number_of(key) for batch in StreamLoader(stream, batch_size=4, num_workers=2) for key in batch.key]
        assert len(own) >= 11 // world_size
        numbers += own
    assert sorted(numbers) == list(range(23))


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "plain.tgz", {"1.jpg": jpeg(1), "1.txt": "cat"})
    (tmp_path / "zipped.tar").write_bytes(gzip.compress(whole.read_bytes()))
    for name in ("plain.tgz", "zipped.tar"):
        with open_shard(str(tmp_path / name)) as archive:
            assert len(list(archive)) == 2
