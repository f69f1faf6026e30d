"""A torch dataset over a `LabelTable`, and a loader that survives, counts and names broken pictures."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, get_args

import torch
from PIL import Image
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.data.images import BadImage, BadImageError, OnBadImage, load_image
from labelwise.data.readers.base import Names, parse_options
from labelwise.data.sources import is_streamed, parse_source
from labelwise.data.streams import HuggingFaceStream, RawSample, Reader, TarShards
from labelwise.data.table import ABSENT, PRESENT, UNKNOWN, LabelTable, repeated_name


class Sample(NamedTuple):
    image: Tensor  # [3, H, W]
    target: Tensor  # [N] int8 in {1, 0, -1}
    row: int  # of the table


class Batch(NamedTuple):
    images: Tensor  # [B, 3, H, W]
    targets: Tensor  # [B, N] int8 in {1, 0, -1}
    rows: Tensor  # [B] int64: of the table


class ImageDataset(Dataset[Sample | BadImage]):
    """The images of `table` through `transform`.

    With a `seed`, what is random in the transform depends on (seed, epoch, row) alone: the same pictures come out for
    any number of workers, in any order and after a restart. Call `set_epoch` before each pass. With `copies`, row r is
    also there as r + M, r + 2 M, ..., each time varied anew (repeated augmentation).

    `on_bad_image="skip"` goes on without broken pictures; `bad_images` lists those met so far (through `ImageLoader`,
    also when worker processes met them).
    """

    def __init__(
        self,
        table: LabelTable,
        transform: Callable[[Image.Image], Tensor],
        on_bad_image: OnBadImage = "error",
        seed: int | None = None,
        copies: int = 1,
    ) -> None:
        self.table, self.transform, self.on_bad_image, self.seed = table, transform, on_bad_image, seed
        self.copies = copies
        self.min_side: int | None = getattr(transform, "min_side", None)
        self._bad: dict[int, BadImage] = {}
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that live on see it change

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    @property
    def bad_images(self) -> list[BadImage]:
        return [self._bad[row] for row in sorted(self._bad)]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> Sample | BadImage:
        number = range(self.copies * len(self.table))[number]  # negative ones count from the end; others raise
        row = number % len(self.table)
        path = self.table.images[row]
        try:
            picture = load_image(path, min_side=self.min_side)
        except BadImageError as error:
            bad = BadImage(row, path, error.reason)
            if get_worker_info() is None:
                self.note_bad_image(bad)
            # A worker hands it over as a value: torch would turn an exception into a page of tracebacks.
            return bad
        return Sample(self._transformed(picture, number), torch.from_numpy(self.table.target(row)), row)

    def note_bad_image(self, bad: BadImage) -> None:
        """Count it, or raise, as `on_bad_image` says."""
        if self.on_bad_image == "error":
            raise BadImageError(bad.path, bad.reason).skippable(self.table.where(bad.row))
        self._bad[bad.row] = bad

    def _transformed(self, picture: Image.Image, number: int) -> Tensor:
        if self.seed is None:
            return self.transform(picture)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_mixed_seed(self.seed, int(self._epoch), number))
            return self.transform(picture)


class ImageLoader(DataLoader[Sample | BadImage]):
    """A DataLoader over an `ImageDataset` that yields `Batch`es of the good pictures and takes note of the others.

    A batch without any good picture is passed over; with `every_batch`, where batches are counted, it raises.
    """

    dataset: ImageDataset

    def __init__(self, dataset: ImageDataset, *, every_batch: bool = False, **options: Any) -> None:
        super().__init__(dataset, collate_fn=collate, **options)
        self.every_batch = every_batch

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # a generator: torch types its own iterator class
        for batch, bad_images in super().__iter__():
            for bad in bad_images:
                self.dataset.note_bad_image(bad)
            if batch is not None:
                yield batch
            elif self.every_batch:
                raise LabelwiseError(
                    f"none of the {len(bad_images)} images of a batch can be decoded, such as {bad_images[0].path!r}. "
                    "Take broken images out of the data (labelwise data inspect lists them), or raise --batch-size."
                )


def collate(items: list[Sample | BadImage]) -> tuple[Batch | None, list[BadImage]]:
    """The good ones as a batch (None if there is none), and the bad ones."""
    good = [item for item in items if isinstance(item, Sample)]
    bad = [item for item in items if isinstance(item, BadImage)]
    if not good:
        return None, bad
    images, targets, rows = zip(*good, strict=True)
    return Batch(torch.stack(images), torch.stack(targets), torch.tensor(rows)), bad


def _mixed_seed(seed: int, epoch: int, row: int) -> int:
    """One 63-bit seed from three numbers, far apart for neighbours (the finaliser of SplitMix64).

    >>> _mixed_seed(0, 0, 1) != _mixed_seed(0, 1, 0)
    True
    """
    value = 0
    for part in (seed, epoch, row):
        value = (value + part + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 31
    return value >> 1


_MOST_WORKERS = 1024  # loader workers of one process that can count side by side


class StreamSample(NamedTuple):
    """One picture; from a `StreamLoader`, a batch: [B, 3, H, W], [B, N] and a list of keys."""

    image: Tensor  # [3, H, W]
    target: Tensor  # [N] int8 in {1, 0, -1}
    key: str  # shard and name in it


class StreamOptions(Config):
    labels: Names | None = None  # default: labels.txt beside the shards, or what a Hugging Face dataset declares
    split: str = "train"  # of a Hugging Face dataset; shards choose theirs by name
    image_column: str | None = None  # of a Hugging Face dataset
    label_column: str | None = None
    shuffle: int = Field(default=0, ge=0)  # how many samples are held to draw from; 0: the order of the stream
    seed: int = 0


class SampleSource(Protocol):
    @property
    def labels(self) -> tuple[str, ...] | None: ...
    def samples(self, reader: Reader, shuffle: random.Random | None) -> Iterator[RawSample]: ...


def open_stream(
    data: str | Path,
    transform: Callable[[Image.Image], Tensor],
    *,
    labels: Sequence[str] | None = None,
    on_bad_image: OnBadImage = "error",
    **options: Any,
) -> LabelStream:
    """Open `shards/train-{000000..000099}.tar` or `hf:name`; options may stand in the string, see `StreamOptions`."""
    source = parse_source(data)
    if on_bad_image not in get_args(OnBadImage):
        raise unknown_name("on_bad_image", on_bad_image, get_args(OnBadImage))
    if not is_streamed(data):
        raise LabelwiseError(f"{data} is no stream: give shards (*.tar, webdataset:folder) or hf:name")
    given = {**source.options, **options} | ({} if labels is None else {"labels": labels})
    chosen = parse_options(StreamOptions, given, f"stream {data}")
    samples: SampleSource
    if source.format == "hf":
        samples = HuggingFaceStream(source.path, chosen.split, chosen.image_column, chosen.label_column)
    else:
        samples = TarShards(source.path)
    names = chosen.labels or samples.labels
    if names is None:
        raise LabelwiseError(
            f"{data} does not say which labels there are; add labels=, or labels.txt beside the shards"
        )
    if (name := repeated_name(names)) is not None:
        raise LabelwiseError(f"label {name!r} is listed twice; label names must be unique")
    return LabelStream(samples, names, transform, on_bad_image, chosen.shuffle, chosen.seed)


class LabelStream(IterableDataset[StreamSample]):
    """Each sample once per pass, over all loader workers and distributed processes together.

    Processes may get different numbers of samples: a distributed loop has to agree on when a pass ends.
    """

    def __init__(
        self,
        source: SampleSource,
        labels: Sequence[str],
        transform: Callable[[Image.Image], Tensor],
        on_bad_image: OnBadImage = "error",
        shuffle: int = 0,
        seed: int = 0,
    ) -> None:
        self.labels = tuple(labels)
        self._source, self._transform, self._on_bad_image = source, transform, on_bad_image
        self._shuffle, self._seed = shuffle, seed
        self._column = {name: column for column, name in enumerate(self.labels)}
        self._own_labels = source.labels or self.labels  # what a number counts in
        self._not_wanted = set(self._own_labels) - set(self.labels)
        self._rank, self._world_size = _distributed_place()  # asked here: loader workers are not in the process group
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that live on see it change
        self._skipped = torch.zeros(_MOST_WORKERS, dtype=torch.int64).share_memory_()  # per worker: no lost counts

    def set_epoch(self, epoch: int) -> None:
        """Another order in each pass; call it before the pass."""
        self._epoch.fill_(epoch)

    @property
    def bad_images(self) -> int:
        """How many pictures were skipped so far, in all loader workers of this process."""
        return int(self._skipped.sum())

    def __iter__(self) -> Iterator[StreamSample]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        reader = Reader(self._rank, self._world_size, worker, workers)
        # All readers shuffle the shards alike, so that each finds its own part; each buffer is shuffled on its own.
        order = random.Random(f"{self._seed} {int(self._epoch)}") if self._shuffle else None
        raw: Iterable[RawSample] = self._source.samples(reader, order)
        if self._shuffle:
            raw = _shuffled(raw, self._shuffle, random.Random(f"{self._seed} {int(self._epoch)} {reader.index}"))
        for sample in raw:
            try:
                picture = load_image(sample.image, min_side=getattr(self._transform, "min_side", None))
            except BadImageError as error:
                if self._on_bad_image == "error":
                    raise BadImageError(sample.key, error.reason).skippable() from None
                self._skipped[worker] += 1
                continue
            yield StreamSample(self._transform(picture), self._target(sample), sample.key)

    def _target(self, sample: RawSample) -> Tensor:
        target = torch.full((len(self.labels),), ABSENT, dtype=torch.int8)
        for labels, value in ((sample.unknown, UNKNOWN), (sample.present, PRESENT)):
            for label in labels:
                name = label if isinstance(label, str) else self._name_of(label, sample.key)
                if name in self._column:
                    target[self._column[name]] = value
                elif name not in self._not_wanted:
                    raise LabelwiseError(f"{sample.key}: {unknown_name('label', name, self.labels)}")
        return target

    def _name_of(self, number: int, key: str) -> str:
        if not 0 <= number < len(self._own_labels):
            raise LabelwiseError(f"{key}: label number {number}, but there are {len(self._own_labels)} labels, from 0")
        return self._own_labels[number]


class StreamLoader(DataLoader[StreamSample]):
    """A DataLoader over a `LabelStream`; a user's mistake met by a worker stays one line."""

    def __iter__(self) -> Iterator[StreamSample]:  # type: ignore[override]  # torch types its own iterator class
        try:
            yield from super().__iter__()
        except LabelwiseError as error:  # torch puts the worker's traceback into the message
            message = str(error).strip().splitlines()[-1]
            raise LabelwiseError(message.removeprefix("labelwise.core.errors.LabelwiseError: ")) from None


def _shuffled(samples: Iterable[RawSample], size: int, generator: random.Random) -> Iterator[RawSample]:
    """Hold `size` samples and always give out a random one of them."""
    held: list[RawSample] = []
    for sample in samples:
        held.append(sample)
        if len(held) > size:
            place = generator.randrange(len(held))
            held[place], held[-1] = held[-1], held[place]
            yield held.pop()
    generator.shuffle(held)
    yield from held


def _distributed_place() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))  # torchrun, before the group is made
