"""Keeps all scores of an evaluation: in memory while they are few, in a temporary file when they are many.

AP needs every score of one label at once, batches bring every label of few images. So batches are turned into
label-major chunks [N, rows]; reading a block of labels is then one contiguous read per chunk.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.inputs import Bytes, Floats

_CHUNK_BYTES = 32 * 2**20


@dataclass(frozen=True)
class _OnDisk:
    """An array [N, rows] in a file; `self[labels]` reads a block of it, as indexing an array does.

    Plain reads rather than a memory map: mapped pages count as this process's memory, and the point is a bound.
    """

    file: BufferedRandom
    offset: int
    rows: int
    dtype: np.dtype[Any]

    @classmethod
    def write(cls, file: BufferedRandom, array: NDArray[Any]) -> _OnDisk:
        offset = file.seek(0, 2)
        file.write(array.data)
        return cls(file, offset, array.shape[1], array.dtype)

    def __getitem__(self, labels: slice) -> NDArray[Any]:
        block = np.empty((labels.stop - labels.start, self.rows), dtype=self.dtype)
        self.file.seek(self.offset + labels.start * self.rows * block.itemsize)
        self.file.readinto(block.data)
        return block


@dataclass(frozen=True)
class _Chunk:
    rows: int
    scores: Floats | _OnDisk  # [N, rows]
    targets: Bytes | _OnDisk


class ScoreStore:
    def __init__(self, labels: int, memory_limit: int, folder: Path | None = None) -> None:
        self.labels = labels
        self.rows = 0
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self.bytes_on_disk = 0
        self._memory_left = memory_limit
        self._folder = folder
        self._file: BufferedRandom | None = None
        self._chunks: list[_Chunk] = []
        self._pending: list[tuple[Floats, Bytes]] = []  # row-major batches, not yet a chunk
        self._pending_bytes = 0

    def append(self, scores: Floats, targets: Bytes) -> None:
        """Add images [B, N]. The arrays are copied: callers may reuse their buffers."""
        self._pending.append((scores.copy(), targets.copy()))
        self._pending_bytes += scores.nbytes + targets.nbytes
        self.rows += len(scores)
        self.dtype = np.promote_types(self.dtype, scores.dtype)
        if self._pending_bytes >= _CHUNK_BYTES:
            self._flush()

    def merge(self, other: ScoreStore) -> None:
        """Add the other store's images. Chunks are shared, not copied: nothing ever changes them."""
        other._flush()
        self._flush()
        self._chunks += other._chunks
        self.rows += other.rows
        self.dtype = np.promote_types(self.dtype, other.dtype)

    def read(self, labels: slice) -> tuple[Floats, Bytes]:
        """All images of a block of labels: scores [n, M] and targets [n, M], the caller's to overwrite."""
        self._flush()
        shape = (labels.stop - labels.start, self.rows)
        scores, targets = np.empty(shape, dtype=self.dtype), np.empty(shape, dtype=np.int8)
        start = 0
        for chunk in self._chunks:
            columns = slice(start, start + chunk.rows)
            scores[:, columns], targets[:, columns] = chunk.scores[labels], chunk.targets[labels]
            start += chunk.rows
        return scores, targets

    def _flush(self) -> None:
        if not self._pending:
            return
        scores = np.ascontiguousarray(np.concatenate([batch for batch, _ in self._pending]).T)  # [N, rows]
        targets = np.ascontiguousarray(np.concatenate([batch for _, batch in self._pending]).T)
        self._pending, self._pending_bytes = [], 0
        size = scores.nbytes + targets.nbytes
        if size <= self._memory_left:
            self._memory_left -= size
            self._chunks.append(_Chunk(scores.shape[1], scores, targets))
        else:
            file = self._spill_file()
            self._chunks.append(_Chunk(scores.shape[1], _OnDisk.write(file, scores), _OnDisk.write(file, targets)))
            self.bytes_on_disk += size

    def _spill_file(self) -> BufferedRandom:
        if self._file is None:
            # The system removes it when its last reader is gone, also after a crash.
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        return self._file
