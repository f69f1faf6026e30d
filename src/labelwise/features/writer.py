"""Collects computed maps and writes them as shards."""

from __future__ import annotations

import time
from collections import defaultdict

import torch
from torch import Tensor

from labelwise.features.shard import write_shard
from labelwise.features.store import Store

# A shard is closed at this size or age: so much work a killed process loses at most.
SHARD_BYTES = 64 * 2**20
SHARD_SECONDS = 30.0


class MapWriter:
    """float16 holds 11 bits: a value is off by at most 1 part in 2,048. A map that leaves its range (65,504) is stored
    in float32 instead. This is decided for each map alone, so it does not depend on the maps around it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._start_shard()

    def _start_shard(self) -> None:
        self._waiting: dict[torch.dtype, list[tuple[bytes, Tensor]]] = defaultdict(list)
        self._bytes, self._since = 0, time.monotonic()

    def add(self, keys: list[bytes], maps: Tensor) -> None:
        """Finite maps [n, H, W, C]."""
        half = maps.half()
        fits = half.isfinite().flatten(1).all(dim=1)  # [n]
        for place, key in enumerate(keys):
            stored = half[place] if fits[place] else maps[place].float()
            self._waiting[stored.dtype].append((key, stored))
            self._bytes += stored.nbytes
        if self._bytes >= SHARD_BYTES or time.monotonic() - self._since >= SHARD_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what waits. After a failure nothing waits any more: a full disk is reported once."""
        waiting = list(self._waiting.values())
        self._start_shard()
        for entries in waiting:
            keys, maps = zip(*entries, strict=True)
            write_shard(self.store.folder, self.store.fingerprint, list(keys), torch.stack(maps))
