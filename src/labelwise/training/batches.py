"""Training batches: augmented images, or the cached features of a frozen backbone.

The rows of a batch depend only on (seed, epoch). All processes together see the same rows in a step, however many they
are: the process with rank r takes every `world_size`-th row of the batch from r on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from labelwise.data.images import BadImage
from labelwise.data.table import LabelTable
from labelwise.features import FeatureCache
from labelwise.loading.dataset import ImageDataset, ImageLoader


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
    order = (order[:, None] + len(rows) * np.arange(repeats)).reshape(-1)[: len(order)]
    size = min(batch_size, len(order)) // share.world_size * share.world_size
    return [
        order[start : start + size][share.rank :: share.world_size] for start in range(0, len(order) - size + 1, size)
    ]


class ImageBatches:
    """Batches of images, augmented for training."""

    def __init__(
        self, train: ImageDataset, held_out: ImageDataset | None, batch_size: int, workers: int, seed: int, share: Share
    ) -> None:
        self.train, self.held_out = train, held_out
        self.batch_size, self.workers, self.seed, self.share = batch_size, workers, seed, share

    def __len__(self) -> int:
        return len(self._order(0))

    def _order(self, epoch: int) -> list[np.ndarray]:
        rows = np.arange(len(self.train))
        return epoch_order(rows, self.batch_size, self.seed, epoch, self.share, self.train.copies)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        self.train.set_epoch(epoch)
        sampler = [batch.tolist() for batch in self._order(epoch)[first:]]
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
        return len(epoch_order(self.train.rows, self.batch_size, self.seed, 0, self.share))

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        mirrored = np.random.default_rng([self.seed, epoch, 1]).random(int(self.train.rows.max()) + 1) < self.flip
        for rows in epoch_order(self.train.rows, self.batch_size, self.seed, epoch, self.share)[first:]:
            # Targets become dense batch by batch: those of all images would take gigabytes at 10,000 labels.
            targets = torch.from_numpy(self.train_table.targets(rows))
            yield self.train.batch(rows, mirrored[rows]), targets, torch.from_numpy(rows)

    def validation(self, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
        if self.held_out is None or self.held_out_table is None:
            return
        mine = self.held_out.rows[share.rank :: share.world_size]
        for start in range(0, len(mine), self.batch_size):
            rows = mine[start : start + self.batch_size]
            yield self.held_out.batch(rows), torch.from_numpy(self.held_out_table.targets(rows))

    @property
    def train_images(self) -> int:
        return len(self.train_table)

    @property
    def bad_images(self) -> list[BadImage]:
        return self.train.bad_images + (self.held_out.bad_images if self.held_out else [])
