"""Curves behind the numbers: precision against recall, one threshold for all labels, and calibration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.evaluation.fit import Doubles
from labelwise.metrics.inputs import Bytes, Floats

Points = list[tuple[float, float]]


def precision_recall_curve(values: Floats, targets: Bytes, points: int = 60) -> Points:
    """(recall, precision) of one label [M] from its best score down; at most about `points` of them, the ends included.
    Empty without a positive. The area under its steps is the average precision.

    >>> precision_recall_curve(np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 0, 1, -1], np.int8))
    [(0.5, 1.0), (0.5, 0.5), (1.0, 0.6666666666666666)]
    """
    known = targets >= 0
    scores, positive = values[known], targets[known] == 1
    if not positive.any():
        return []
    order = np.argsort(-scores, kind="stable")
    ranked, found = scores[order], positive[order].cumsum()
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)  # equal scores are one threshold
    ends = ends[: np.searchsorted(found[ends], found[-1]) + 1]  # nothing is left to find behind the last positive
    recall, precision = found[ends] / found[-1], found[ends] / (ends + 1)
    kept = _thinned(recall, points)
    return list(zip(recall[kept].tolist(), precision[kept].tolist(), strict=True))


def _thinned(recall: Doubles, points: int) -> NDArray[np.int64]:
    """Places of at most about `points` steps, evenly along the recall."""
    if len(recall) <= points:
        return np.arange(len(recall))
    places = np.searchsorted(recall, np.linspace(recall[0], 1, points))
    return np.unique(np.append(np.clip(places, 0, len(recall) - 1), [0, len(recall) - 1]))


@dataclass(frozen=True)
class CommonThreshold:
    """What one threshold for all labels would give: overall fractions, [T] each."""

    thresholds: Doubles
    precision: Doubles  # NaN where nothing is predicted
    recall: Doubles
    f1: Doubles


def common_threshold(scores: Doubles, targets: Bytes, steps: int = 50) -> CommonThreshold:
    """OP, OR and OF1 at thresholds from 0 to 1 of scores [M, N].

    >>> found = common_threshold(np.array([[0.9, 0.3], [0.6, 0.2]]), np.array([[1, 0], [0, 1]], np.int8), steps=2)
    >>> found.thresholds.tolist(), found.recall.tolist()
    ([0.0, 0.5, 1.0], [1.0, 0.5, 0.0])
    """
    known = targets >= 0
    every, right = np.sort(scores[known]), np.sort(scores[targets == 1])
    thresholds = np.linspace(0, 1, steps + 1)
    predicted = len(every) - np.searchsorted(every, thresholds)  # score >= threshold
    correct = len(right) - np.searchsorted(right, thresholds)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.where(predicted > 0, correct / predicted, np.nan)
        recall = correct / len(right) if len(right) else np.full(len(thresholds), np.nan)
        f1 = 2 * correct / (predicted + len(right))
    return CommonThreshold(thresholds, precision, recall, f1)


def best_f1(values: Floats, targets: Bytes) -> float:
    """The F1 of one label [M] at the threshold that would have been best on these images; NaN without a positive.

    >>> best_f1(np.array([0.9, 0.8, 0.7]), np.array([1, 0, 1], np.int8))
    0.8
    """
    curve = np.array(precision_recall_curve(values, targets, points=len(values)))
    if not len(curve):
        return float("nan")
    recall, precision = curve.T
    return float((2 * recall * precision / np.maximum(recall + precision, 1e-300)).max())


@dataclass(frozen=True)
class ReliabilityBin:
    score: float  # mean of the scores in it
    share: float  # of them that are right
    entries: int


def reliability(scores: Doubles, targets: Bytes, bins: int = 15) -> list[ReliabilityBin]:
    """Do scores mean what they say? The bins of `expected_calibration_error`, without the empty ones.

    >>> reliability(np.array([[0.9], [0.9], [0.1]]), np.array([[1], [0], [0]], np.int8))[1]
    ReliabilityBin(score=0.9, share=0.5, entries=2)
    """
    known = targets >= 0
    probability, positive = scores[known], targets[known] == 1
    place = np.minimum((probability * bins).astype(np.int64), bins - 1)
    entries = np.bincount(place, minlength=bins)
    total, right = np.bincount(place, probability, bins), np.bincount(place, positive, bins)
    return [
        ReliabilityBin(float(total[b] / entries[b]), float(right[b] / entries[b]), int(entries[b]))
        for b in np.flatnonzero(entries)
    ]
