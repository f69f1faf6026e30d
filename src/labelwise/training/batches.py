"""Training batches: augmented images, or the cached features of a frozen backbone.

The rows of a batch depend only on (seed, epoch), also where they are read from shards. All processes together see the
same rows in a step, however many they are: the process with rank r takes every `world_size`-th row of the batch from r
on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from labelwise.data.decode import read_ahead
from labelwise.data.images import BadImage
from labelwise.data.stream_table import AnyTable, StreamTable
from labelwise.data.table import LabelTable
from labelwise.features import FeatureCache
from labelwise.loading.dataset import ImageDataset, ImageLoader

_Batch = TypeVar("_Batch")
_READERS = 2  # threads that read cached features


class Share(NamedTuple):
    """The part of the rows that belongs to one process."""

    rank: int = 0
    world_size: int = 1


class Batches(Protocol):
    def __len__(self) -> int:
        """Steps in an epoch."""

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, targets [B, N] and table rows [B] of the steps from `first` on, this process's share of each."""

    def validation(self, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
        """This share of the validation rows, unaugmented, in order."""

    @property
    def train_images(self) -> int:
        """Rows of the training table."""

    @property
    def bad_images(self) -> list[BadImage]: ...


def epoch_order(
    rows: np.ndarray, batch_size: int, seed: int, epoch: int, share: Share, repeats: int = 1
) -> list[np.ndarray]:
    """The epoch's batches of rows. Rows that do not fill a batch are left for other epochs.

    With `repeats`, that many copies of a row follow each other (with several processes, each copy goes to another one).
    The epoch keeps its length, so it holds fewer rows. Copy c of row r has the number r + c * len(rows).

    >>> [batch.tolist() for batch in epoch_order(np.arange(5), 2, seed=0, epoch=0, share=Share())]
    [[2, 4], [3, 0]]
    >>> [batch.tolist() for batch in epoch_order(np.arange(5), 2, seed=0, epoch=0, share=Share(), repeats=2)]
    [[2, 7], [4, 9]]
    """
    order = np.random.default_rng([seed, epoch]).permutation(rows)
    return list(batches_of([order], len(rows), batch_size, share, repeats))


def steps_of(rows: int, batch_size: int, share: Share) -> tuple[int, int]:
    """The batches of an epoch, and the rows of one for all processes together."""
    size = min(batch_size, rows) // share.world_size * share.world_size
    return rows // size, size


def batches_of(
    order: Iterable[np.ndarray],
    rows: int,
    batch_size: int,
    share: Share,
    repeats: int = 1,
    first: int = 0,
    prepare: Callable[[np.ndarray], None] | None = None,
) -> Iterator[np.ndarray]:
    """The batches of `epoch_order` from `first` on, for an order of so many `rows` that comes piece by piece.
    `prepare` is called with this process's rows of a piece that begins and of the one that follows."""
    steps, size = steps_of(rows, batch_size, share)
    skipped, left = first * size, (steps - first) * size
    rest = np.empty(0, np.int64)
    nothing = np.empty(0, np.int64)
    for piece, following in pairwise(chain(order, [nothing])):
        copies = (piece[:, None] + rows * np.arange(repeats)).reshape(-1)
        passed = min(skipped, len(copies))
        skipped -= passed
        if left <= 0 or passed == len(copies):
            continue
        if prepare is not None:
            for coming in (piece, following):
                prepare(coming[share.rank :: share.world_size])
        rest = np.concatenate([rest, copies[passed:]])[: max(left, 0)]
        whole = len(rest) // size * size
        for start in range(0, whole, size):
            yield rest[start : start + size][share.rank :: share.world_size]
        rest, left = rest[whole:], left - whole


def shuffled(table: AnyTable, seed: int, epoch: int) -> Iterable[np.ndarray]:
    """The order of an epoch, piece by piece; of a table on disk in one piece."""
    if isinstance(table, StreamTable):
        return table.shuffled(seed, epoch)
    return [np.random.default_rng([seed, epoch]).permutation(len(table))]


def preparing(table: AnyTable) -> Any:
    """A context that gives what `batches_of` calls with the rows that come next, if they are in shards."""
    return table.prepared() if isinstance(table, StreamTable) else nullcontext()


class Waiting(Iterator[_Batch]):
    """An iterator that knows how long its caller has waited for it."""

    def __init__(self, batches: Iterator[_Batch]) -> None:
        self._batches, self.seconds = batches, 0.0

    def __next__(self) -> _Batch:
        started = time.monotonic()
        try:
            return next(self._batches)
        finally:
            self.seconds += time.monotonic() - started


class ImageBatches:
    """Batches of images, augmented for training."""

    def __init__(
        self, train: ImageDataset, held_out: ImageDataset | None, batch_size: int, workers: int, seed: int, share: Share
    ) -> None:
        self.train, self.held_out = train, held_out
        self.batch_size, self.workers, self.seed, self.share = batch_size, workers, seed, share

    def __len__(self) -> int:
        return steps_of(len(self.train), self.batch_size, self.share)[0]

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        self.train.set_epoch(epoch)
        order = shuffled(self.train.table, self.seed, epoch)
        with preparing(self.train.table) as prepare:
            rows = batches_of(
                order, len(self.train), self.batch_size, self.share, self.train.copies, first, prepare
            )  # one after the other: the numbers of all images as Python objects would take gigabytes
            sampler = (batch.tolist() for batch in rows)
            for batch in ImageLoader(self.train, every_batch=True, batch_sampler=sampler, num_workers=self.workers):
                yield batch.images, batch.targets, batch.rows

    def validation(self, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
        if self.held_out is None:
            return
        rows = range(share.rank, len(self.held_out), share.world_size)
        sampler = [list(rows[start : start + self.batch_size]) for start in range(0, len(rows), self.batch_size)]
        for batch in ImageLoader(self.held_out, batch_sampler=sampler, num_workers=self.workers):
            yield batch.images, batch.targets

    @property
    def train_images(self) -> int:
        return len(self.train)

    @property
    def bad_images(self) -> list[BadImage]:
        return self.train.bad_images + (self.held_out.bad_images if self.held_out else [])


class FeatureBatches:
    """Batches of cached feature maps; `flip` is the probability that a training row is mirrored."""

    def __init__(
        self,
        train: FeatureCache,
        held_out: FeatureCache | None,
        tables: tuple[LabelTable, LabelTable | None],  # of each cache
        batch_size: int,
        seed: int,
        share: Share,
        flip: float,
    ) -> None:
        self.train, self.held_out = train, held_out
        self.train_table, self.held_out_table = tables
        self.batch_size, self.seed, self.share, self.flip = batch_size, seed, share, flip

    def __len__(self) -> int:
        return steps_of(len(self.train.rows), self.batch_size, self.share)[0]

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        mirrored = np.random.default_rng([self.seed, epoch, 1]).random(int(self.train.rows.max()) + 1) < self.flip

        def read(rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
            # Targets become dense batch by batch: those of all images would take gigabytes at 10,000 labels.
            targets = torch.from_numpy(self.train_table.targets(rows))
            return self.train.batch(rows, mirrored[rows]), targets, torch.from_numpy(rows)

        rows = epoch_order(self.train.rows, self.batch_size, self.seed, epoch, self.share)[first:]
        # While a step is computed, the next ones are read: of a cache larger than memory, from the disk.
        yield from read_ahead(read, rows, threads=_READERS, ahead=2 * _READERS)

    def validation(self, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
        if self.held_out is None or self.held_out_table is None:
            return
        mine = self.held_out.rows[share.rank :: share.world_size]
        cache, table = self.held_out, self.held_out_table
        batches = (mine[start : start + self.batch_size] for start in range(0, len(mine), self.batch_size))
        yield from read_ahead(
            lambda rows: (cache.batch(rows), torch.from_numpy(table.targets(rows))),
            batches,
            threads=_READERS,
            ahead=2 * _READERS,
        )

    @property
    def train_images(self) -> int:
        return len(self.train_table)

    @property
    def bad_images(self) -> list[BadImage]:
        return self.train.bad_images + (self.held_out.bad_images if self.held_out else [])
