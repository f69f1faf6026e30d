"""Streams of raw samples: tar shards in the webdataset convention, and Hugging Face datasets.

In a shard, `0001.jpg` and `0001.json` (or .cls, .txt) belong together. Shards are read with the standard library and
fsspec, so they may be on a disk or behind http(s), s3, gs, ...; unlike in the webdataset package, nothing in a shard's
address or content is ever run or unpickled.
"""

from __future__ import annotations

import glob
import gzip
import json
import random
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple, Self

from labelwise.core.errors import LabelwiseError, missing_extra, one_line, unknown_name
from labelwise.data.images import is_image, read_bytes, require_regular
from labelwise.data.readers.base import read_lines
from labelwise.data.readers.manifest import IMAGE_COLUMNS, LABEL_COLUMNS, UNKNOWN_COLUMNS, find_column
from labelwise.data.table import canonical_split

_GZIP = b"\x1f\x8b"  # how its files begin
_CHUNK = 1 << 20
_MEMBER = re.compile(r"((?:.*/)?[^/.]+)\.?([^/]*)", re.DOTALL)  # key and suffix of a file that is not hidden

Labels = list[str | int]  # names, or numbers from 0


class RawSample(NamedTuple):
    """One image of a stream, not yet decoded."""

    key: str
    image: bytes
    present: Labels
    unknown: Labels


@dataclass(frozen=True)
class Reader:
    """Who reads: one loader worker of one distributed process. All readers together read everything once."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1

    @property
    def index(self) -> int:
        return self.rank * self.workers + self.worker

    @property
    def count(self) -> int:
        return self.world_size * self.workers


def expand_braces(pattern: str) -> list[str]:
    """Number ranges and alternatives, as in a shell.

    >>> expand_braces("train-{08..10}.tar"), expand_braces("{a,b}/{0..1}.tar")
    (['train-08.tar', 'train-09.tar', 'train-10.tar'], ['a/0.tar', 'a/1.tar', 'b/0.tar', 'b/1.tar'])
    """
    parts = re.split(r"\{([^{}]*)\}", pattern)  # text, inside of braces, text, ...
    choices = [[part] if number % 2 == 0 else _choices(part) for number, part in enumerate(parts)]
    return ["".join(choice) for choice in product(*choices)]


def _choices(inside: str) -> list[str]:
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if not numbers:
        return inside.split(",")
    return [f"{n:0{len(numbers[1])}d}" for n in range(int(numbers[1]), int(numbers[2]) + 1)]


# ---- tar shards


class TarShards:
    """The samples of tar files; the pattern is a folder, `*.tar` or `name-{000000..000009}.tar`."""

    def __init__(self, pattern: str) -> None:
        self.shards = [found for part in expand_braces(pattern) for found in _find(part)]
        if not self.shards:
            raise LabelwiseError(f"no shards match {pattern!r}; give a folder, *.tar or name-{{000000..000009}}.tar")

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The lines of `labels.txt` next to the shards, if it exists."""
        file = Path(self.shards[0]).parent / "labels.txt"
        return tuple(read_lines(file)) if file.is_file() else None

    def samples(self, reader: Reader, shuffle: random.Random | None) -> Iterator[RawSample]:
        """The reader's part: whole shards if there are enough for all readers, else every count-th sample of all."""
        shards = list(self.shards)
        if shuffle is not None:
            shuffle.shuffle(shards)
        by_shard = len(shards) >= reader.count
        if by_shard:
            shards = shards[reader.index :: reader.count]
        number = 0
        for shard in shards:
            with open_shard(shard) as archive:
                for sample in _grouped(shard, archive):
                    if by_shard or number % reader.count == reader.index:
                        yield sample
                    number += 1


def _find(path: str) -> list[str]:
    """The shards of a path or pattern. A missing one is an error now, not after an hour of training."""
    if "://" in path:
        return [path]
    if Path(path).is_dir():
        return sorted(str(file) for file in Path(path).glob("*.tar"))
    found = sorted(glob.glob(path))
    if not found and not glob.has_magic(path):
        raise LabelwiseError(f"the shard {path} does not exist")
    return found


class _StrictHeader(tarfile.TarInfo):
    """Refuses damaged headers: tarfile takes them for the end of the archive and silently ignores the rest."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the mark that every complete archive ends with
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"it is damaged or cut short: {error}") from None


@contextmanager
def open_shard(shard: str) -> Iterator[tarfile.TarFile]:
    """Open a shard to read all its files in order; damage raises, at the latest at the end."""
    import fsspec  # comes with torch

    require_regular(shard)
    try:
        with (
            fsspec.open(shard, "rb") as file,
            BufferedReader(file) as buffered,
            # tarfile could unzip, too, but does not check the checksum.
            gzip.open(buffered) if buffered.peek(2)[:2] == _GZIP else buffered as stream,
            tarfile.open(fileobj=stream, mode="r|*", tarinfo=_StrictHeader) as archive,
        ):
            yield archive
            # Read to the very end: gzip's checksum is there, and zeros in a damaged file look like an end.
            while rest := archive.fileobj.read(_CHUNK):
                if rest.strip(b"\0"):
                    raise tarfile.ReadError("it is damaged: more follows after its end mark")
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise LabelwiseError(f"the shard {shard} is not a readable tar file ({error})") from None


def _grouped(shard: str, archive: tarfile.TarFile) -> Iterator[RawSample]:
    """Files that follow each other and have the same name up to the first dot are one sample."""
    named = ((_MEMBER.fullmatch(member.name), member) for member in archive if member.isfile())
    files = ((match[1], match[2].lower(), member) for match, member in named if match)  # key, suffix, file
    for key, group in groupby(files, key=lambda file: file[0]):
        # mypy cannot know that all of them are files, which have content
        yield _raw_sample(shard, key, {suffix: archive.extractfile(member).read() for _, suffix, member in group})  # type: ignore[union-attr]


def _raw_sample(shard: str, key: str, files: dict[str, bytes]) -> RawSample:
    image = next((content for suffix, content in files.items() if is_image(f"x.{suffix}")), None)
    if image is None:
        raise LabelwiseError(f"{shard}: sample {key!r} has no image, only {', '.join('.' + s for s in files)}")
    text = files.get("cls", files.get("txt"))
    if "json" in files:
        labels = _labels_in_json(files["json"], f"{shard}: the .json of sample {key!r}")
    elif text is not None:
        parts = [part.strip() for part in re.split(r"[\n|;,]", text.decode("utf-8", "replace"))]
        labels = [int(part) if part.isdecimal() else part for part in parts if part], []
    else:
        raise LabelwiseError(f"{shard}: sample {key!r} has no labels: looked for .json, .cls and .txt")
    return RawSample(f"{shard}/{key}", image, *labels)


def _labels_in_json(content: bytes, where: str) -> tuple[Labels, Labels]:
    """A list, or an object with `labels` (or `tags`, `label`, ...) and perhaps `unknown`."""
    try:
        value: Any = json.loads(content)
    except ValueError as error:
        raise LabelwiseError(f"{where} is not JSON ({error})") from None
    if not isinstance(value, dict):
        value = {"labels": value}
    name, unknown = find_column(value, LABEL_COLUMNS), find_column(value, UNKNOWN_COLUMNS)
    if name is None:
        raise LabelwiseError(f"{where} has no 'labels', only {', '.join(value)}")
    return as_list(value[name], where), as_list(value.get(unknown), where)


def as_list(value: Any, where: str = "") -> Labels:
    """One label or several; None is no label.

    >>> as_list("cat"), as_list([0, 2]), as_list(None)
    (['cat'], [0, 2], [])
    """
    if value is None:
        return []
    labels = list(value) if isinstance(value, list | tuple) else [value]
    for label in labels:
        if not isinstance(label, str | int) or isinstance(label, bool):
            raise LabelwiseError(f"{where}: labels are names, or numbers from 0, not {label!r}")
    return labels


# ---- Hugging Face datasets

_KEY_COLUMNS = ("__key__", "id", "image_id", "file_name")
_LOCAL_SHARDS = 64  # of a dataset on disk: as many loader workers can share it


class HuggingFaceStream:
    """The samples of a split of a dataset on the Hugging Face hub or on disk."""

    def __init__(self, name: str, split: str, image_column: str | None, label_column: str | None) -> None:
        self.name = name
        self._rows: Any = _open(name, split)  # a datasets.IterableDataset
        features = self._rows.features
        if features is None:
            raise LabelwiseError(f"hf:{name} does not say which columns it has")
        self._image = _column(name, "image", image_column, IMAGE_COLUMNS, features)
        self._label = _column(name, "label", label_column, LABEL_COLUMNS, features)
        self._unknown = find_column(features, UNKNOWN_COLUMNS)
        label = features[self._label]  # a ClassLabel, or a list of them, has names; plain strings have not
        self.labels = tuple(getattr(getattr(label, "feature", label), "names", None) or ()) or None
        if type(features[self._image]).__name__ == "Image":
            # Bytes, not decoded images: our own decoder treats every source in the same way.
            self._rows = self._rows.cast_column(self._image, type(features[self._image])(decode=False))

    def samples(self, reader: Reader, shuffle: random.Random | None) -> Iterator[RawSample]:
        """The reader's part. `datasets` itself splits over the workers of a DataLoader, whole shards each."""
        from datasets.distributed import split_dataset_by_node

        rows = self._rows
        if shuffle is not None:
            rows = rows.shuffle(seed=shuffle.randrange(2**31), buffer_size=1)  # the order of the shards
        rows = split_dataset_by_node(rows, reader.rank, reader.world_size)
        for number, row in enumerate(rows):
            yield self._raw_sample(row, f"{reader.index}-{number}")

    def _raw_sample(self, row: dict[str, Any], number: str) -> RawSample:
        image: Any = row[self._image]
        path: str | None = None
        if isinstance(image, dict):
            image, path = image.get("bytes"), image.get("path")
        elif isinstance(image, str):
            image, path = None, image
        key = next((row[column] for column in _KEY_COLUMNS if row.get(column) is not None), path or number)
        return RawSample(
            f"{self.name}/{key}",
            image if image is not None else read_bytes(str(path)),
            as_list(row[self._label], f"{self.name}/{key}"),
            as_list(row.get(self._unknown or ""), f"{self.name}/{key}"),
        )


def _open(name: str, split: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise missing_extra("datasets", "streaming") from None
    if (Path(name) / "dataset_dict.json").is_file() or (Path(name) / "state.json").is_file():
        saved = datasets.load_from_disk(name)
        if isinstance(saved, datasets.DatasetDict):
            saved = _choose(name, split, saved)
        return saved.to_iterable_dataset(num_shards=min(_LOCAL_SHARDS, len(saved)))
    try:
        splits = datasets.load_dataset(name, streaming=True)
    except Exception as error:  # the hub, the network and the builders raise their own classes
        raise LabelwiseError(f"cannot open hf:{name} ({one_line(error)})") from error
    return _choose(name, split, splits)


def _choose(name: str, split: str, splits: Mapping[str, Any]) -> Any:
    """The split, whatever it is called there: val finds `validation`."""
    for there in splits:
        if canonical_split(there) == canonical_split(split):
            return splits[there]
    raise unknown_name("split", split, splits, f"hf:{name}")


def _column(name: str, what: str, given: str | None, usual: tuple[str, ...], features: Any) -> str:
    found = given or find_column(features, usual)
    if found is None or found not in features:
        raise LabelwiseError(f"hf:{name} has no {what} column: it has {', '.join(features)}; add {what}_column=")
    return found
