"""Shards whose samples can be read in any order; `shard_kinds` has one class for each kind of source.

A local tar file and a list are read where they are: an index says at which byte each image begins. All others (at an
address, zipped, Parquet) cannot be read at random, so a shard is first copied to the cache, images and labels one after
the other, and the copies that were used longest ago are deleted when the cache is full.

Not torchdata's StatefulDataLoader: it saves a state for each worker of each process, and loads it only with as many
workers (0.11: AssertionError). webdataset and `datasets` count what each worker has read, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from labelwise.core.arrays import Ints
from labelwise.core.errors import LabelwiseError, counted
from labelwise.core.files import atomic_write, cache_folder, lock, sha256
from labelwise.data.images import MAX_FILE_BYTES, BadImageError, Encoded, fault_of_file, too_large
from labelwise.data.locations import read_file, retried
from labelwise.data.parquet import beside
from labelwise.data.streams import Sample, SampleLabels, parse_labels
from labelwise.data.strings import PackedStrings

FORMAT = 1  # raise it whenever an index or a copy is written in another way
INDEX, COPY = "index.npz", "samples"
_SUFFIXES = ("", "json", "cls", "txt")  # of the labels
_NO_LABELS = (0, 0)
Place = tuple[int, int]  # first byte and size


@dataclass(frozen=True, eq=False)
class SampleIndex:
    """Where the n samples of a shard are in a file."""

    keys: PackedStrings  # n
    images: Ints  # [n, 2] first byte and size
    labels: Ints  # [n, 2]
    suffixes: NDArray[np.uint8]  # [n] into _SUFFIXES
    are_paths: bool = False  # the images are elsewhere, and these are their paths
    is_copied: bool = False  # the file is a copy in the cache

    @classmethod
    def of(cls, samples: Iterable[Sample[Place]], *, are_paths: bool = False, is_copied: bool = False) -> SampleIndex:
        found = list(samples)
        return cls(
            PackedStrings(sample.key for sample in found),
            np.array([sample.image for sample in found], np.int64).reshape(-1, 2),
            np.array([sample.labels or _NO_LABELS for sample in found], np.int64).reshape(-1, 2),
            np.array([_SUFFIXES.index(sample.suffix) for sample in found], np.uint8),
            are_paths,
            is_copied,
        )

    def take(self, numbers: Ints) -> SampleIndex:
        """The index of some of the samples."""
        places = self.images[numbers], self.labels[numbers], self.suffixes[numbers]
        return replace(self, keys=self.keys.take(numbers), images=places[0], labels=places[1], suffixes=places[2])

    def save(self, file: BinaryIO) -> None:
        keys = "\0".join(self.keys).encode("utf-8", "surrogateescape")
        np.savez(
            file,
            keys=np.frombuffer(keys, np.uint8),
            images=self.images,
            labels=self.labels,
            suffixes=self.suffixes,
            flags=np.array([self.are_paths, self.is_copied]),
        )

    @classmethod
    def load(cls, file: Path) -> SampleIndex:
        try:
            with np.load(file) as arrays:
                images = arrays["images"]
                keys = arrays["keys"].tobytes().decode("utf-8", "surrogateescape").split("\0") if len(images) else []
                are_paths, is_copied = arrays["flags"].tolist()
                return cls(PackedStrings(keys), images, arrays["labels"], arrays["suffixes"], are_paths, is_copied)
        except (BadZipFile, EOFError, KeyError, ValueError):  # a disk has changed it: it is written again
            raise FileNotFoundError(file) from None


class Samples:
    """The samples of an open shard."""

    def __init__(self, name: str, file: str | Path, index: SampleIndex) -> None:
        self.name, self.index = name, index
        self._file = os.open(file, os.O_RDONLY)

    def __len__(self) -> int:
        return len(self.index.keys)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # it was never opened, or Python is ending
            os.close(self._file)

    def key(self, number: int) -> str:
        return self.index.keys[number]

    def image(self, number: int) -> Encoded:
        """The content of an image file; BadImageError if there is none."""
        name = f"{self.name}/{self.key(number)}"
        first, size = self.index.images[number].tolist()
        if size > MAX_FILE_BYTES:
            raise BadImageError(name, too_large(size))
        content = self._read(first, size)
        if not self.index.are_paths:
            return Encoded(name, content)
        path, data, problem = read_file(beside(self.name, content.decode("utf-8", "surrogateescape")))
        if problem:
            raise BadImageError(path, problem)
        return Encoded(path, data)

    def labels(self, number: int) -> SampleLabels:
        suffix = _SUFFIXES[self.index.suffixes[number]]
        if not suffix:
            raise LabelwiseError(
                f"{self.name}: sample {self.key(number)!r} has no labels: looked for .json, .cls and .txt; give a "
                "table of them with labels_from="
            )
        content = self._read(*self.index.labels[number].tolist())
        return parse_labels(content, suffix, f"{self.name}: the .{suffix} of sample {self.key(number)!r}")

    def _read(self, first: int, size: int) -> bytes:
        # Workers that were forked share the open file, so they must not share a position in it.
        return os.pread(self._file, size, first)


@dataclass(frozen=True)
class Shard:
    """Some samples that are stored together. Small enough to be sent to another process."""

    file: str
    count: int = -1  # samples; -1: found by `counted`
    split: str = ""

    @property
    def identity(self) -> str:
        """Another one for other samples of the same file."""
        return self.file

    @property
    def at_random(self) -> bool:
        """Whether it is read where it is, by its name alone: all readers must agree on it."""
        return False

    @property
    def are_paths(self) -> bool:
        """Whether its images are paths of files elsewhere."""
        return False

    def in_place(self) -> SampleIndex | None:
        """Where the samples are in the file itself; None if they have to be copied first."""
        return None

    def samples(self) -> Iterator[Sample[bytes]]:
        """All samples, in order."""
        raise NotImplementedError

    def open(self, cache_bytes: int) -> Samples:
        """Its samples, to be read in any order. `cache_bytes`: what all copies together may take on the disk."""
        try:
            return retried(lambda: self._open(cache_bytes), self.file)
        except OSError as error:
            raise LabelwiseError(f"cannot read the shard {self.file} ({fault_of_file(error)})") from None

    def _open(self, cache_bytes: int) -> Samples:
        digest = sha256(f"{FORMAT} {self.identity} ", file_version(self.file)).hexdigest()
        folder = cache_folder() / "streams" / digest[:32]
        with suppress(FileNotFoundError):
            return self._opened(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("a") as file:
            lock(file, wait=True)  # workers that need the same shard wait for the first one
            with suppress(FileNotFoundError):
                return self._opened(folder)
            self._prepare(folder, cache_bytes)
            return self._opened(folder)

    def _opened(self, folder: Path) -> Samples:
        index = SampleIndex.load(folder / INDEX)
        samples = Samples(self.file, folder / COPY if index.is_copied else self.file, index)
        if index.is_copied:
            with suppress(OSError):  # it was used just now; on a disk that cannot be written it stays as it is
                os.utime(folder / COPY)
        if self.count not in (-1, len(samples)):
            raise LabelwiseError(
                f"{self.file} has {counted(len(samples), 'sample')}, but {self.count:,} were stated (index.json, "
                "samples=); correct that"
            )
        return samples

    def _prepare(self, folder: Path, cache_bytes: int) -> None:
        index = self.in_place()
        if index is None:
            index = copied(self.samples(), folder / COPY, self.are_paths)
            make_room(folder.parent, cache_bytes, folder / COPY)

        def write(draft: Path) -> None:
            with draft.open("wb") as file:
                index.save(file)

        atomic_write(folder / INDEX, write)


def copied(samples: Iterable[Sample[bytes]], file: Path, are_paths: bool) -> SampleIndex:
    """Write samples one after the other into a file, and say where they are."""
    places: list[Sample[Place]] = []

    def write(draft: Path) -> None:
        places.clear()
        with draft.open("wb") as out:

            def put(content: bytes) -> Place:
                out.write(content)
                return out.tell() - len(content), len(content)

            for sample in samples:
                labels = None if sample.labels is None else put(sample.labels)
                places.append(Sample(sample.key, put(sample.image), labels, sample.suffix))

    atomic_write(file, write)
    return SampleIndex.of(places, are_paths=are_paths, is_copied=True)


def make_room(folder: Path, limit: int, newest: Path) -> None:
    """Delete the copies that were used longest ago, until all take no more than `limit` bytes. Who has one open keeps
    it until it is closed."""
    found: list[tuple[float, int, Path]] = []
    for copy in folder.glob(f"*/{COPY}"):
        with suppress(FileNotFoundError):  # another process is making room, too
            about = copy.stat()
            found.append((about.st_mtime, about.st_size, copy))
    total = sum(size for _, size, _ in found)
    for _, size, copy in sorted(found):
        if total <= limit or copy == newest:
            break
        copy.unlink(missing_ok=True)
        total -= size


def file_version(file: str) -> str:
    """Changes when the file does."""
    if "://" not in file:
        about = os.stat(file)
        return f"{about.st_size} {about.st_mtime_ns}"
    import fsspec

    system, path = fsspec.core.url_to_fs(file)
    return str(system.ukey(path))
