"""A table whose rows are read from shards when they are asked for: training and evaluation take it as a `LabelTable`.

A row has a number, as in any table: that alone makes training exact. The order of an epoch is a function of (seed,
epoch), not of who reads, so a run resumes by counting steps, with any number of workers and processes. Memory holds the
list of shards and a few open files, however many images there are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from labelwise.core.arrays import Ints, Targets, row_pointers
from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.core.files import sha256
from labelwise.data.images import BadImageError, Encoded
from labelwise.data.shards import Samples, Shard
from labelwise.data.side_labels import SideLabels
from labelwise.data.strings import StringColumn
from labelwise.data.table import ABSENT, PRESENT, UNKNOWN, LabelTable, SplitTable, check_unique

_OPEN_SHARDS = 256  # of one process: open files are limited
_DOWNLOADS = 4  # shards at a time, ahead of the training


@dataclass(frozen=True, eq=False, repr=False)
class StreamTable(SplitTable):
    """Images with their labels and splits, in shards.

    Args:
        labels: N unique names: the column order of the targets.
        shards: The samples, in order; each shard belongs to one split.
        source: The data argument, for messages.
        columns: The column of each name that samples may use; -1 for one that is not wanted.
        own_labels: What label numbers in the samples count in.
        blank: [N]; the values of an image without any label.
        side: Labels from a table beside the shards, by key.
        shuffle: Samples that are shuffled at a time.
        piece: Samples of a shard that stay together before that, if the shard is read where it is.
        lanes: How many parts of the shards are read side by side, see `shuffled`.
        cache_bytes: What copies of shards may take on the disk.
        label_sets: As in a `LabelTable`.
    """

    labels: tuple[str, ...]
    shards: tuple[Shard, ...]
    source: str
    columns: Mapping[str, int]
    own_labels: tuple[str, ...]
    blank: Targets
    side: SideLabels | None = None
    shuffle: int = 20_000
    piece: int = 100
    lanes: int = 1
    cache_bytes: int = 50 << 30
    label_sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    single_label: bool = False  # nobody has looked at all images
    _first: Ints = field(init=False)  # [S+1]; the first row of each shard
    _opened: OpenShards = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_first", row_pointers([shard.count for shard in self.shards]))
        object.__setattr__(self, "_opened", OpenShards(self.cache_bytes))

    @classmethod
    def of(
        cls, shards: Sequence[Shard], labels: Sequence[str], source: str, *, unlisted: int = ABSENT, **others: Any
    ) -> Self:
        """`unlisted`: the value of a label that a sample does not name."""
        check_unique(labels, f"{source}: ")
        columns = {name: column for column, name in enumerate(labels)}
        blank = np.full(len(labels), unlisted, np.int8)
        return cls(tuple(labels), tuple(shards), source, columns, tuple(labels), blank, **others)

    def __len__(self) -> int:
        return int(self._first[-1])

    def __repr__(self) -> str:
        return f"<StreamTable {self.source!r}: {len(self):,} images in {len(self.shards):,} shards>"

    @property
    def fingerprint(self) -> str:
        """The same as long as the labels and the shards with their numbers of samples are: contents are not read."""
        shards = (f"{shard.identity} {shard.split} {shard.count}" for shard in self.shards)
        side = [] if self.side is None else [self.side.version]
        return sha256("\n".join([*self.labels, *shards, *side])).hexdigest()

    # ---- rows

    def _shard_of(self, row: int) -> int:
        return int(np.searchsorted(self._first, row, "right")) - 1

    def _at(self, row: int) -> tuple[Samples, int]:
        shard = self._shard_of(row)
        return self._opened[self.shards[shard]], row - int(self._first[shard])

    def image(self, row: int) -> Encoded:
        """The content of the image file; of a shard that cannot be read, all images are bad ones."""
        try:
            samples, number = self._at(row)
            return samples.image(number)
        except BadImageError:
            raise
        except (LabelwiseError, OSError) as error:
            raise BadImageError(self.shards[self._shard_of(row)].file, f"its shard cannot be read: {error}") from None

    @property
    def images(self) -> Sequence[str]:
        """The names of the images, looked up one by one."""
        return _Names(self)

    def where(self, row: int) -> str:
        """Where an image comes from, for messages."""
        return self.source

    def target(self, row: int) -> Targets:
        """The values of one image, [N]."""
        samples, number = self._at(row)
        found = self.side.labels(samples.key(number)) if self.side else samples.labels(number)
        values = self.blank.copy()
        for value, names in zip((UNKNOWN, ABSENT, PRESENT), reversed(found), strict=True):  # present wins
            for label in names:
                column = self._column(label, samples, number)
                if column >= 0:
                    values[column] = value
        return values

    def targets(self, rows: ArrayLike | None = None) -> Targets:
        """The values of `rows` (default: all images) as a dense array, [m, N]: m x N bytes."""
        chosen = range(len(self)) if rows is None else np.asarray(rows).tolist()
        return np.stack([self.target(row) for row in chosen])

    def _column(self, label: str | int, samples: Samples, number: int) -> int:
        where = f"{samples.name}/{samples.key(number)}"
        if isinstance(label, int):
            if not 0 <= label < len(self.own_labels):
                raise LabelwiseError(
                    f"{where}: label number {label}, but there are {len(self.own_labels)} labels, from 0"
                )
            label = self.own_labels[label]
        if label not in self.columns:
            raise unknown_name("label", label, self.labels, where)
        return self.columns[label]

    def with_labels(self, order: Sequence[str], missing: Literal["error", "unknown", "absent"] = "error") -> Self:
        """Other columns: reordered, fewer, or (unless `missing` is "error") more, filled with the value named."""
        check_unique(order)
        column_of = {name: column for column, name in enumerate(order)}
        added = [name for name in order if name not in self.labels]
        if added and missing == "error":
            raise unknown_name("label", added[0], self.labels, self.source)
        blank = np.full(len(order), UNKNOWN if missing == "unknown" else ABSENT, np.int8)
        for name, value in zip(self.labels, self.blank, strict=True):
            if name in column_of:
                blank[column_of[name]] = value
        moved = [column_of.get(name, -1) for name in self.labels]
        columns = {name: moved[column] if column >= 0 else -1 for name, column in self.columns.items()}
        sets = {key: tuple(n for n in names if n in column_of) for key, names in self.label_sets.items()}
        return replace(self, labels=tuple(order), columns=columns, blank=blank, label_sets=sets)

    # ---- splits

    @property
    def all_splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(shard.split for shard in self.shards))

    def select(self, split: str) -> Self:
        """The images of a split, or of several: `train`, `train+val`, `trainval`."""
        names = self.wanted_splits(split)
        return replace(self, shards=tuple(shard for shard in self.shards if shard.split in names))

    def held_out(self, share: float, seed: int) -> tuple[Self, Self]:
        """All images but a random share of each shard, and that share."""
        parts = [
            tuple(part for shard in self.shards if (part := ShardPart.of(shard, share, seed, held)).count)
            for held in (False, True)
        ]
        return replace(self, shards=parts[0]), replace(self, shards=parts[1])

    # ---- the order of an epoch

    def shuffled(self, seed: int, epoch: int) -> Iterator[Ints]:
        """All rows once, window by window: another order for each (seed, epoch), the same for all readers.

        The shards, or pieces of those that are read where they are, are shuffled and laid end to end, and each window
        of `shuffle` samples of that sequence is shuffled.

        With several lanes, the sequence is cut into that many equal parts, which are read side by side: every
        `lanes`-th image of the order belongs to the same one. If the number of machines divides the number of lanes
        and the batch size, no two machines read the same lane, so that each needs only its share of the shards.
        """
        starts = self._pieces()  # [P+1]
        order = np.random.default_rng([seed, epoch]).permutation(len(starts) - 1)
        whole, longer = divmod(len(self), self.lanes)
        bounds = [lane * whole + min(lane, longer) for lane in range(self.lanes + 1)]
        ends = enumerate(pairwise(bounds))
        parts = [self._lane(starts, order, first, last, [seed, epoch, lane]) for lane, (first, last) in ends]
        return interleaved(parts)

    def _pieces(self) -> Ints:
        """The first row of each piece, and the number of rows."""
        sizes = ((shard.count, self.piece if shard.at_random else shard.count) for shard in self.shards)
        inside = [np.arange(0, count, size) for count, size in sizes]
        return np.concatenate(
            [first + rows for first, rows in zip(self._first, inside, strict=False)] + [self._first[-1:]]
        )

    def _lane(self, starts: Ints, order: Ints, start: int, stop: int, seed: list[int]) -> Iterator[Ints]:
        ends = np.cumsum(np.diff(starts)[order])  # [P] of each piece in the shuffled sequence
        windows = max(1, min(stop - start, (stop - start) * self.lanes // self.shuffle))
        bounds = [start + (stop - start) * number // windows for number in range(windows + 1)]
        for number, (first, last) in enumerate(pairwise(bounds)):
            place = np.arange(first, last)
            piece = np.searchsorted(ends, place, "right")
            rows = starts[order[piece] + 1] - (ends[piece] - place)
            yield np.random.default_rng([*seed, number]).permutation(rows)

    @contextmanager
    def prepared(self) -> Iterator[Any]:
        """Inside the block, calling it with rows copies their shards to the cache, in the background."""
        # Threads end with the block: the next epoch forks its workers without them.
        with ThreadPoolExecutor(_DOWNLOADS, thread_name_prefix="shards") as pool:

            def prepare(rows: Ints) -> None:
                for number in np.unique(np.searchsorted(self._first, rows, "right") - 1).tolist():
                    pool.submit(self._prepare, self.shards[number])

            yield prepare
            pool.shutdown(cancel_futures=True)

    def _prepare(self, shard: Shard) -> None:
        with suppress(LabelwiseError, OSError):  # who reads it tells
            shard.open(self.cache_bytes)


AnyTable = LabelTable | StreamTable


def with_labels_read(table: AnyTable, images: Sequence[str] | None = None) -> LabelTable:
    """The labels of all images, read from their shards at once. `images`: their paths, if they have any."""
    if isinstance(table, LabelTable):
        return table
    splits = [shard.split for shard in table.shards for _ in range(shard.count)]
    images = images or [""] * len(table)
    fill = int(table.blank[0]) if (table.blank == table.blank[0]).all() else ABSENT
    rows = map(table.target, range(len(table)))
    entries = ({int(column): int(row[column]) for column in np.flatnonzero(row != fill)} for row in rows)
    return LabelTable.from_rows(images, entries, table.labels, splits=splits, fill=fill, source=table.source)


def interleaved(parts: Sequence[Iterator[Ints]]) -> Iterator[Ints]:
    """One element of each part in turns; earlier parts may have one more than later ones.

    >>> [rows.tolist() for rows in interleaved([iter([np.array([0, 1, 2])]), iter([np.array([3]), np.array([4])])])]
    [[0, 3], [1, 4], [2]]
    """
    held: list[Ints] = [np.empty(0, np.int64)] * len(parts)
    while True:
        held = [rows if len(rows) else next(part, rows) for rows, part in zip(held, parts, strict=True)]
        size = min(map(len, held))
        if size == 0:
            if len(rest := np.concatenate(held)):
                yield rest
            return
        yield np.stack([rows[:size] for rows in held], axis=1).reshape(-1)
        held = [rows[size:] for rows in held]


class OpenShards:
    """The shards that this process has open, those used last; threads may share it."""

    def __init__(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._samples: OrderedDict[Shard, Samples] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, shard: Shard) -> Samples:
        with self._lock:
            if shard not in self._samples:
                self._samples[shard] = shard.open(self._cache_bytes)
                if len(self._samples) > _OPEN_SHARDS:
                    self._samples.popitem(last=False)
            self._samples.move_to_end(shard)
            return self._samples[shard]

    def __reduce__(self) -> tuple[type[OpenShards], tuple[int]]:
        return OpenShards, (self._cache_bytes,)  # files stay with the process that opened them


@dataclass(frozen=True, kw_only=True)
class ShardPart(Shard):
    """Some samples of a shard, drawn at random: of a held-out share, or all others."""

    whole: Shard
    share: float
    seed: int
    held: bool

    @classmethod
    def of(cls, shard: Shard, share: float, seed: int, held: bool) -> ShardPart:
        count = round(shard.count * share)
        count = count if held else shard.count - count
        return cls(shard.file, count, shard.split, whole=shard, share=share, seed=seed, held=held)

    @property
    def identity(self) -> str:
        return f"{self.whole.identity} {self.share} {self.seed} {self.held}"

    @property
    def at_random(self) -> bool:
        return self.whole.at_random

    def open(self, cache_bytes: int) -> Samples:
        samples = self.whole.open(cache_bytes)
        # By the shard's name and not by its place: adding shards moves no image from one part to the other.
        seed = int.from_bytes(sha256(f"{self.seed} {self.whole.identity}").digest()[:8])
        order = np.random.default_rng(seed).permutation(self.whole.count)
        held = round(self.whole.count * self.share)
        samples.index = samples.index.take(np.sort(order[:held] if self.held else order[held:]))
        return samples


class _Names(StringColumn):
    def __init__(self, table: StreamTable) -> None:
        self._table = table

    def _get(self, index: int) -> str:
        samples, number = self._table._at(index)
        return f"{samples.name}/{samples.key(number)}"

    def __len__(self) -> int:
        return len(self._table)
