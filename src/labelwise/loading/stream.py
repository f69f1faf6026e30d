"""A torch dataset over a stream: tar shards or a Hugging Face dataset, read once per pass without a table."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, get_args

import torch
from PIL import Image
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.data.images import BadImageError, OnBadImage, load_image
from labelwise.data.readers.base import Names, parse_options
from labelwise.data.sources import is_streamed, parse_source
from labelwise.data.streams import HuggingFaceStream, RawSample, Reader, TarShards
from labelwise.data.table import ABSENT, PRESENT, UNKNOWN, check_unique

_MOST_WORKERS = 1024  # loader workers of one process that can count bad images without losing any


class StreamSample(NamedTuple):
    """One image; from a `StreamLoader`, a batch: [B, 3, H, W], [B, N] and a list of keys."""

    image: Tensor  # [3, H, W]
    target: Tensor  # [N] int8 in {1, 0, -1}
    key: str  # shard and name in it


class StreamOptions(Config):
    """Options of a stream.

    Args:
        labels: Default: labels.txt next to the shards, or what a Hugging Face dataset declares.
        split: Of a Hugging Face dataset; shards of a split are chosen by their names.
        image_column: Of a Hugging Face dataset. Default: found by its name.
        label_column: As `image_column`.
        shuffle: How many samples are buffered to draw from at random. 0: the order of the stream.
        seed: Of the shuffling.
    """

    labels: Names | None = None
    split: str = "train"
    image_column: str | None = None
    label_column: str | None = None
    shuffle: int = Field(default=0, ge=0)
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
    """Open a stream of images.

    Args:
        data: `shards/train-{000000..000099}.tar`, `webdataset:folder` or `hf:name`.
        transform: From a PIL image to a tensor [3, H, W].
        labels: The label names; see `StreamOptions` for the default.
        on_bad_image: Whether a broken image is an error or is skipped.
        options: See `StreamOptions`; they may also stand in the string: `hf:name?split=test`.
    """
    source = parse_source(data)
    if on_bad_image not in get_args(OnBadImage):
        raise unknown_name("on_bad_image", on_bad_image, get_args(OnBadImage))
    if not is_streamed(data):
        raise LabelwiseError(f"{data} is not a stream: give shards (*.tar, webdataset:folder) or hf:name")
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
            f"{data} does not say which labels there are; give labels=, or put labels.txt next to the shards"
        )
    check_unique(names)
    return LabelStream(samples, names, transform, on_bad_image, chosen.shuffle, chosen.seed)


@dataclass(eq=False)
class LabelStream(IterableDataset[StreamSample]):
    """Each sample once per pass, over all loader workers and distributed processes together.

    Processes may get different numbers of samples: a distributed loop has to agree on when a pass ends.
    """

    source: SampleSource
    labels: tuple[str, ...]
    transform: Callable[[Image.Image], Tensor]
    on_bad_image: OnBadImage = "error"
    shuffle: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        self._column = {name: column for column, name in enumerate(self.labels)}
        self._own_labels = self.source.labels or self.labels  # what a number counts in
        self._not_wanted = set(self._own_labels) - set(self.labels)
        self._rank, self._world_size = _rank_and_size()  # asked here: loader workers are not in the process group
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # persistent workers see it change
        self._skipped = torch.zeros(_MOST_WORKERS, dtype=torch.int64).share_memory_()  # per worker: no lost counts

    def set_epoch(self, epoch: int) -> None:
        """Another order in each pass; call it before the pass."""
        self._epoch.fill_(epoch)

    @property
    def bad_images(self) -> int:
        """How many images were skipped so far, in all loader workers of this process."""
        return int(self._skipped.sum())

    def __iter__(self) -> Iterator[StreamSample]:
        # A worker hands an error over as a value: torch would turn it into a page of tracebacks.
        try:
            yield from self._samples()
        except LabelwiseError as error:
            if get_worker_info() is None:
                raise
            yield error  # type: ignore[misc]  # only `StreamLoader` sees it

    def _samples(self) -> Iterator[StreamSample]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        reader = Reader(self._rank, self._world_size, worker, workers)
        # All readers shuffle the shards alike, so that each finds its own part; each buffer is shuffled on its own.
        order = random.Random(f"{self.seed} {int(self._epoch)}") if self.shuffle else None
        raw: Iterable[RawSample] = self.source.samples(reader, order)
        if self.shuffle:
            raw = _shuffled(raw, self.shuffle, random.Random(f"{self.seed} {int(self._epoch)} {reader.index}"))
        for sample in raw:
            try:
                image = load_image(sample.image, min_side=getattr(self.transform, "min_side", None))
            except BadImageError as error:
                if self.on_bad_image == "error":
                    raise BadImageError(sample.key, error.reason).skippable() from None
                self._skipped[worker] += 1
                continue
            yield StreamSample(self.transform(image), self._target(sample), sample.key)

    def _target(self, sample: RawSample) -> Tensor:
        target = torch.full((len(self.labels),), ABSENT, dtype=torch.int8)
        for labels, value in ((sample.unknown, UNKNOWN), (sample.present, PRESENT)):
            for label in labels:
                name = label if isinstance(label, str) else self._name_of(label, sample.key)
                if name in self._column:
                    target[self._column[name]] = value
                elif name not in self._not_wanted:
                    raise unknown_name("label", name, self.labels, sample.key)
        return target

    def _name_of(self, number: int, key: str) -> str:
        if not 0 <= number < len(self._own_labels):
            raise LabelwiseError(f"{key}: label number {number}, but there are {len(self._own_labels)} labels, from 0")
        return self._own_labels[number]


class StreamLoader(DataLoader[StreamSample]):
    """A DataLoader over a `LabelStream`."""

    def __init__(self, dataset: LabelStream, **options: Any) -> None:
        super().__init__(dataset, collate_fn=_collate, **options)

    def __iter__(self) -> Iterator[StreamSample]:  # type: ignore[override]  # torch types its own iterator class
        for batch in super().__iter__():
            if isinstance(batch, LabelwiseError):
                raise batch
            yield batch


def _collate(items: list[StreamSample | LabelwiseError]) -> StreamSample | LabelwiseError:
    error = next((item for item in items if isinstance(item, LabelwiseError)), None)
    return error or default_collate(items)


def _shuffled(samples: Iterable[RawSample], size: int, generator: random.Random) -> Iterator[RawSample]:
    """Hold `size` samples and always give out a random one of them."""
    held: list[RawSample] = []
    for sample in samples:
        held.append(sample)
        if len(held) > size:
            drawn = generator.randrange(len(held))
            held[drawn], held[-1] = held[-1], held[drawn]
            yield held.pop()
    generator.shuffle(held)
    yield from held


def _rank_and_size() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))  # torchrun, before the group is made
