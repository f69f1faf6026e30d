"""What is behind the metrics: precision-recall curves, a common threshold, calibration, co-occurrence, mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from labelwise.analysis.measured import MeasuredRun
from labelwise.core.arrays import Doubles, Scores, Targets
from labelwise.evaluation.thresholds import logit_thresholds

Points = list[tuple[float, float]]
Item = TypeVar("Item")
PER_LABEL = 3  # mistakes or suspicious images of one label that are shown


def precision_recall_curve(values: Scores, targets: Targets, points: int = 60) -> Points:
    """(recall, precision) of one label [M] by descending threshold, thinned to about `points`, with both ends.

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
    ends = ends[: np.searchsorted(found[ends], found[-1]) + 1]  # recall is 1 from the last positive on
    recall, precision = found[ends] / found[-1], found[ends] / (ends + 1)
    kept = _thinned(recall, points)
    return list(zip(recall[kept].tolist(), precision[kept].tolist(), strict=True))


def _thinned(recall: Doubles, points: int) -> NDArray[np.int64]:
    """Indices of about `points` steps, evenly along the recall."""
    if len(recall) <= points:
        return np.arange(len(recall))
    places = np.searchsorted(recall, np.linspace(recall[0], 1, points))
    return np.unique(np.append(np.clip(places, 0, len(recall) - 1), [0, len(recall) - 1]))


@dataclass(frozen=True)
class CommonThreshold:
    """Overall precision, recall and F1 with one threshold for all labels, as fractions [T]."""

    thresholds: Doubles
    precision: Doubles  # NaN where nothing is predicted
    recall: Doubles
    f1: Doubles


def common_threshold(scores: Doubles, targets: Targets, steps: int = 50) -> CommonThreshold:
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


def best_f1(values: Scores, targets: Targets) -> float:
    """The F1 of one label [M] at the best threshold for these images; NaN without a positive.

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
    """Scores in one bin of a reliability diagram."""

    score: float  # mean
    share: float  # of correct ones
    entries: int


def reliability(scores: Doubles, targets: Targets, bins: int = 15) -> list[ReliabilityBin]:
    """A reliability diagram: the bins of `expected_calibration_error`, without the empty ones.

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


@dataclass(frozen=True)
class CoOccurrence:
    """Row a, column b: the share of the images with a that also have b. NaN for a label that never occurs."""

    columns: NDArray[np.int64]  # [n] the most frequent labels, in their own order
    truth: Doubles  # [n, n]
    predicted: Doubles  # [n, n]
    images_with: NDArray[np.int64]  # [n] in truth

    def surprises(self, least: int = 10) -> list[tuple[int, int, float, float]]:
        """(a, b, truth, predicted), largest difference first, for labels with at least `least` images."""
        gap = np.abs(self.predicted - self.truth)
        gap[self.images_with < least] = np.nan
        np.fill_diagonal(gap, np.nan)
        order = np.argsort(-np.where(np.isnan(gap), -1, gap), axis=None, kind="stable")
        places = [divmod(int(place), len(self.columns)) for place in order]
        return [
            (a, b, float(self.truth[a, b]), float(self.predicted[a, b])) for a, b in places if not np.isnan(gap[a, b])
        ]


def co_occurrence(targets: Targets, predicted: NDArray[np.bool_], most: int = 30) -> CoOccurrence:
    """Co-occurrence of the `most` frequent labels, in the ground truth and in the predictions.

    Images in which one of the two labels is unknown are left out of both.

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


@dataclass(frozen=True)
class Mistake:
    """A wrong decision about one label of one image."""

    image: str
    label: str
    kind: Literal["false positive", "miss"]
    score: float
    threshold: float
    present: tuple[str, ...]  # the image's labels


def worst_mistakes(run: MeasuredRun, kind: Literal["false positive", "miss"], most: int) -> list[Mistake]:
    """The wrong decisions that are furthest from their thresholds, a few of each label."""
    wrong = run.predicted & (run.targets == 0) if kind == "false positive" else ~run.predicted & (run.targets == 1)
    places = np.argwhere(wrong)  # [k, 2]: rows and columns
    margin = np.abs(run.logits - logit_thresholds(run.config))[wrong]
    worst = (tuple(places[index].tolist()) for index in np.argsort(-margin, kind="stable"))  # as far as it is read
    return [
        Mistake(
            image=run.table.images[row],
            label=run.labels[column],
            kind=kind,
            score=float(run.scores[row, column]),
            threshold=float(run.thresholds[column]),
            present=tuple(run.table.present(row)),
        )
        for row, column in few_of_each(worst, lambda place: place[1], most)
    ]


def few_of_each(items: Iterable[Item], label: Callable[[Item], int], most: int) -> list[Item]:
    """The first `most` items, but at most `PER_LABEL` of one label: otherwise the hardest label would fill the list.

    >>> few_of_each([3, 3, 3, 3, 5, 7], lambda item: item, most=5)
    [3, 3, 3, 5, 7]
    """
    taken: Counter[int] = Counter()
    kept: list[Item] = []
    for item in items:
        if len(kept) >= most:
            break
        taken[label(item)] += 1
        if taken[label(item)] <= PER_LABEL:
            kept.append(item)
    return kept
