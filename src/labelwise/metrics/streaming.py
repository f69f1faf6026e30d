"""The same numbers batch by batch, in bounded memory, over several processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import LabelwiseError
from labelwise.metrics import distributed
from labelwise.metrics.inputs import ArrayLike, read_both, read_thresholds
from labelwise.metrics.ranking import Method, average_precision_by_label, check_method, label_blocks
from labelwise.metrics.store import ScoreStore
from labelwise.metrics.summary import MultiLabelScores, read_top_ks
from labelwise.metrics.tally import Tally


class MultiLabelMetrics:
    """Collects batches; `compute()` gives exactly what `multilabel_scores` gives on all of them at once.

    Scores beyond `memory_limit` bytes go to a temporary file in `folder` (the system's default if `None`).

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
        """The result over all images; in a torch.distributed run over all processes' images, equal on each of them.

        Every process must call it then; `all_processes=False` looks at this process alone.
        """
        shared = all_processes and distributed.process_count() > 1
        tally = self._sum_of_tallies() if shared else self._tally
        if tally.images[0] == 0:
            raise LabelwiseError("no images to evaluate; call update() first")
        precision = self._shared_average_precision() if shared else self._average_precision()
        return MultiLabelScores.from_parts(tally, precision, self.method)

    def _average_precision(self) -> NDArray[np.float64]:
        blocks = label_blocks(self.images, self.labels)
        return np.concatenate([average_precision_by_label(*self._store.read(b), self.method) for b in blocks])

    def _shared_average_precision(self) -> NDArray[np.float64]:
        """Processes take turns: block by block, one of them gets all images of a few labels and ranks them."""
        most_rows, widest = distributed.max_over_processes(np.array([self.images, self._store.dtype.itemsize]))
        dtype = np.float64 if widest == 8 else np.float32  # what is exchanged must have one type
        processes = distributed.process_count()
        precision = np.zeros(self.labels)
        for turn, block in enumerate(label_blocks(int(most_rows) * processes, self.labels)):
            scores, targets = self._store.read(block)
            gathered = distributed.gather_images(scores.astype(dtype), targets, int(most_rows), turn % processes)
            if gathered is not None:
                precision[block] = average_precision_by_label(*gathered, self.method)
        return distributed.sum_over_processes(precision)  # each label is 0 everywhere but where it was ranked

    def _sum_of_tallies(self) -> Tally:
        labels = distributed.sum_over_processes(self._tally.labels)
        return Tally(self._top_k, labels, distributed.sum_over_processes(self._tally.images))

    def _settings(self) -> tuple[object, ...]:
        return self.labels, self._top_k, self.method, self._thresholds.tolist()
