"""The same metrics batch by batch, in bounded memory, across processes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from labelwise.core.arrays import Doubles, Ints, Scores, Targets
from labelwise.core.errors import LabelwiseError
from labelwise.metrics.precision_recall import Tally
from labelwise.metrics.ranking import (
    ArrayLike,
    Method,
    average_precision_by_label,
    check_method,
    label_blocks,
    read_both,
    read_thresholds,
)
from labelwise.metrics.summary import MultiLabelScores, read_top_ks

_CHUNK_BYTES = 32 * 2**20


class MultiLabelMetrics:
    """Collects batches; `compute()` gives exactly what `multilabel_scores` gives on all of them at once.

    Args:
        labels: N, the number of labels.
        thresholds: One for all labels, or one per label [N].
        top_k: The k of the top-k metrics, one or several.
        method: Of average precision, see `average_precision`.
        memory_limit: Bytes of scores to keep in memory; the rest goes to a temporary file.
        folder: Where that file is made. Default: the system's folder for temporary files.

    >>> metrics = MultiLabelMetrics(labels=2)
    >>> metrics.update(np.array([[0.9, 0.6]]), np.array([[1, 0]]))
    >>> metrics.update(np.array([[0.2, 0.7]]), np.array([[1, 1]]))
    >>> metrics.compute().at_thresholds.CF1
    0.75
    """

    def __init__(
        self,
        labels: int,
        *,
        thresholds: float | Sequence[float] | ArrayLike = 0.5,
        top_k: int | Sequence[int] = 3,
        method: Method = "area",
        memory_limit: int = 2**30,
        folder: Path | str | None = None,
    ) -> None:
        check_method(method)
        self.labels = labels
        self.method: Method = method
        self._thresholds = read_thresholds(thresholds, labels)
        self._top_k = read_top_ks(top_k)
        self._memory_limit = memory_limit
        self._folder = Path(folder) if folder is not None else None
        self.reset()

    def reset(self) -> None:
        """Forget everything collected."""
        self._tally = Tally.zero(self.labels, self._top_k)
        self._store = ScoreStore(self.labels, self._memory_limit, self._folder)

    @property
    def images(self) -> int:
        """How many images this process has collected."""
        return self._store.rows

    @property
    def bytes_on_disk(self) -> int:
        """How much of the scores went to the temporary file."""
        return self._store.bytes_on_disk

    def update(self, scores: ArrayLike, targets: ArrayLike) -> None:
        """Add images: scores [B, N], targets [B, N] in {1, 0, -1}."""
        values, known = read_both(scores, targets)
        if values.shape[1] != self.labels:
            raise LabelwiseError(f"scores have {values.shape[1]} labels, these metrics {self.labels}")
        self._tally += Tally.of(values, known, self._thresholds, self._top_k)
        self._store.append(values, known)

    def merge(self, other: MultiLabelMetrics) -> None:
        """Add what another collected, as if this one had seen its batches."""
        if self._settings() != other._settings():
            raise LabelwiseError("only metrics with equal labels, thresholds, top_k and method can be merged")
        self._tally += other._tally
        self._store.merge(other._store)

    def compute(self, *, all_processes: bool = True) -> MultiLabelScores:
        """The metrics of all images collected.

        Args:
            all_processes: In a torch.distributed run, of the images of all processes; every process must call it and
                gets the same result. False: of this process alone.
        """
        shared = all_processes and process_count() > 1
        tally = self._sum_of_tallies() if shared else self._tally
        if tally.images[0] == 0:
            raise LabelwiseError("no images to evaluate; call update() first")
        precision = self._shared_average_precision() if shared else self._average_precision()
        return MultiLabelScores.from_parts(tally, precision, self.method)

    def _average_precision(self) -> Doubles:
        blocks = label_blocks(self.images, self.labels)
        return np.concatenate([average_precision_by_label(*self._store.read(b), self.method) for b in blocks])

    def _shared_average_precision(self) -> Doubles:
        """Processes take turns: each gets all images of a block of labels and ranks them."""
        most_rows, widest = max_over_processes(np.array([self.images, self._store.dtype.itemsize]))
        dtype = np.float64 if widest == 8 else np.float32  # what is exchanged must have one type
        processes = process_count()
        precision = np.zeros(self.labels)
        for turn, block in enumerate(label_blocks(int(most_rows) * processes, self.labels)):
            scores, targets = self._store.read(block)
            gathered = gather_images(scores.astype(dtype), targets, int(most_rows), turn % processes)
            if gathered is not None:
                precision[block] = average_precision_by_label(*gathered, self.method)
        return sum_over_processes(precision)  # each label is 0 everywhere but where it was ranked

    def _sum_of_tallies(self) -> Tally:
        labels = sum_over_processes(self._tally.labels)
        return Tally(self._top_k, labels, sum_over_processes(self._tally.images))

    def _settings(self) -> tuple[object, ...]:
        return self.labels, self._top_k, self.method, self._thresholds.tolist()


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
    scores: Scores | _OnDisk  # [N, rows]
    targets: Targets | _OnDisk


class ScoreStore:
    """Scores and targets of all images, label-major; chunks beyond `memory_limit` bytes are on disk."""

    def __init__(self, labels: int, memory_limit: int, folder: Path | None = None) -> None:
        self.labels = labels
        self.rows = 0
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self.bytes_on_disk = 0
        self._memory_left = memory_limit
        self._folder = folder
        self._file: BufferedRandom | None = None
        self._chunks: list[_Chunk] = []
        self._pending: list[tuple[Scores, Targets]] = []  # row-major batches, not yet a chunk
        self._pending_bytes = 0

    def append(self, scores: Scores, targets: Targets) -> None:
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

    def read(self, labels: slice) -> tuple[Scores, Targets]:
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


def process_count() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_rank() -> int:
    return dist.get_rank() if process_count() > 1 else 0


def sum_over_processes(array: NDArray[Any]) -> NDArray[Any]:
    return _reduce(array, dist.ReduceOp.SUM)


def max_over_processes(array: Ints) -> Ints:
    return _reduce(array, dist.ReduceOp.MAX)


def gather_images(scores: Scores, targets: Targets, rows: int, to: int) -> tuple[Scores, Targets] | None:
    """Every process's [n, M] blocks side by side, on process `to` (`None` elsewhere).

    Processes may hold different numbers of images: each pads to `rows` with unknown entries, which count nowhere.
    """
    missing = ((0, 0), (0, rows - scores.shape[1]))
    all_scores = _gather(np.pad(scores, missing), to)
    all_targets = _gather(np.pad(targets, missing, constant_values=-1), to)
    if not all_scores:
        return None
    return np.concatenate(all_scores, axis=1), np.concatenate(all_targets, axis=1)


def _gather(array: NDArray[Any], to: int) -> list[NDArray[Any]]:
    sent = _to_device(array)
    received = [torch.empty_like(sent) for _ in range(process_count())] if process_rank() == to else None
    dist.gather(sent, received, dst=to)
    return [piece.cpu().numpy() for piece in received or []]


def _reduce(array: NDArray[Any], operation: dist.ReduceOp.RedOpType) -> NDArray[Any]:
    total = _to_device(array.copy())
    dist.all_reduce(total, operation)
    return total.cpu().numpy()


def _to_device(array: NDArray[Any]) -> Tensor:
    """NCCL exchanges only what is on its GPU."""
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
