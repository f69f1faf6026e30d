"""Which labels come together: in truth, and in what a model names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.evaluation.fit import Doubles
from labelwise.metrics.inputs import Bytes


@dataclass(frozen=True)
class CoOccurrence:
    """Row a, column b: of the images with a, the share that also has b. NaN for a label that never occurs."""

    columns: NDArray[np.int64]  # [n] which labels: the most frequent, in their own order
    truth: Doubles  # [n, n]
    predicted: Doubles  # [n, n]
    images_with: NDArray[np.int64]  # [n] in truth

    def surprises(self, least: int = 10) -> list[tuple[int, int, float, float]]:
        """(a, b, truth, predicted) by how much they differ, for labels with at least `least` images."""
        gap = np.abs(self.predicted - self.truth)
        gap[self.images_with < least] = np.nan
        np.fill_diagonal(gap, np.nan)
        order = np.argsort(-np.where(np.isnan(gap), -1, gap), axis=None, kind="stable")
        places = [divmod(int(place), len(self.columns)) for place in order]
        return [
            (a, b, float(self.truth[a, b]), float(self.predicted[a, b])) for a, b in places if not np.isnan(gap[a, b])
        ]


def co_occurrence(targets: Bytes, predicted: NDArray[np.bool_], most: int = 30) -> CoOccurrence:
    """Of the `most` frequent labels. Images where one of the two is unknown are left out on both sides, so that the
    two numbers are about the same images.

    >>> targets = np.array([[1, 1], [1, 0], [0, 0]], np.int8)
    >>> found = co_occurrence(targets, targets[:, ::-1] == 1)
    >>> found.truth.tolist(), found.predicted.tolist()
    ([[1.0, 0.5], [1.0, 1.0]], [[1.0, 1.0], [0.5, 1.0]])
    """
    positives = (targets == 1).sum(axis=0)
    columns = np.sort(np.argsort(-positives, kind="stable")[:most])
    known = (targets[:, columns] >= 0).astype(np.float32)  # [M, n]

    def shares(present: NDArray[np.bool_]) -> Doubles:
        there = present[:, columns] * known
        with np.errstate(invalid="ignore", divide="ignore"):
            given: Doubles = (there.T @ there).astype(np.float64) / (there.T @ known)
        return given

    return CoOccurrence(columns, shares(targets == 1), shares(predicted), positives[columns])
