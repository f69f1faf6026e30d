"""The order in which the rows of shards are trained on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labelwise.data.shard_kinds import TarShard
from labelwise.data.shards import Shard
from labelwise.data.stream_table import StreamTable


def table_of(counts: list[int], kind: type[Shard] = Shard, **options: Any) -> StreamTable:
    return StreamTable.of([kind(f"{n}.tar", count) for n, count in enumerate(counts)], ["a"], "drawn", **options)


def order(table: StreamTable, seed: int = 0, epoch: int = 0) -> list[int]:
    return np.concatenate([np.empty(0, np.int64), *table.shuffled(seed, epoch)]).tolist()


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    shuffle=st.integers(1, 200),
    lanes=st.integers(1, 5),
    epoch=st.integers(0, 3),
    piece=st.integers(1, 12),
)
def test_every_row_once_whatever_the_shards(
    counts: list[int], shuffle: int, lanes: int, epoch: int, piece: int
) -> None:
    table = table_of(counts, TarShard if piece < 10 else Shard, shuffle=shuffle, lanes=lanes, piece=piece)
    rows = order(table, seed=1, epoch=epoch)
    assert sorted(rows) == list(range(sum(counts)))
    assert rows == order(table, seed=1, epoch=epoch)


def test_another_order_for_each_epoch_and_seed() -> None:
    table = table_of([10] * 8, shuffle=30)
    assert len({tuple(order(table, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


def test_windows_mix_shards_and_lanes_keep_them_apart() -> None:
    counts = [100] * 40
    near = order(table_of(counts, shuffle=1000))
    assert all(len({row // 100 for row in near[start : start + 1000]}) <= 11 for start in range(0, 4000, 1000))
    assert np.mean([len({row // 100 for row in near[start : start + 64]}) for start in range(0, 3000, 64)]) > 8
    lanes = order(table_of(counts, shuffle=1000, lanes=4))
    read_by = [{row // 100 for row in lanes[lane::4]} for lane in range(4)]
    assert sum(map(len, read_by)) <= 40 + 3  # a shard is read by two lanes only where it is cut


def test_pieces_of_local_shards_mix_far_more_of_them() -> None:
    rows = order(table_of([1000] * 40, TarShard, shuffle=4000, piece=50))
    assert np.mean([len({row // 1000 for row in rows[start : start + 64]}) for start in range(0, 39_000, 64)]) > 25


def test_windows_are_uniform_inside() -> None:
    """Where a row of the first window lands: each place is as likely as any other (chi-squared, 4 sigma)."""
    table = table_of([20], shuffle=20)
    places = Counter(order(table, seed).index(3) for seed in range(2000))
    chi2 = sum((places[place] - 100) ** 2 / 100 for place in range(20))
    assert chi2 < 19 + 4 * (2 * 19) ** 0.5
