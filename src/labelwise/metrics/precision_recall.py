"""Precision, recall and F1 averaged over labels (C) and overall (O), as in HSQ appendix A.1; F1@k; top-k accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from labelwise.core.arrays import Doubles, Ints, Mask, Scores, Targets, to_numpy
from labelwise.core.errors import LabelwiseError
from labelwise.metrics.ranking import ArrayLike, read_both, read_k, read_scores, read_thresholds

_NAN = float("nan")


@dataclass(frozen=True)
class PrecisionRecall:
    """Precision, recall and F1 as fractions. All six are NaN if no positive is known.

    Args:
        CP: Mean of the labels' precisions.
        CR: Mean of the labels' recalls.
        CF1: Harmonic mean of CP and CR.
        OP: Precision over all entries.
        OR: Recall over all entries.
        OF1: Harmonic mean of OP and OR.
        labels_never_predicted: Of the labels with a positive; each counts as precision 0 in CP.
    """

    CP: float
    CR: float
    CF1: float
    OP: float
    OR: float
    OF1: float
    labels_never_predicted: int

    @classmethod
    def from_counts(cls, predictions: LabelCounts, positives: Ints) -> Self:
        """Class averages run over the labels that have a positive; overall sums run over every known entry."""
        has_positive = positives > 0
        if not has_positive.any():
            return cls(_NAN, _NAN, _NAN, _NAN, _NAN, _NAN, 0)
        correct, predicted = predictions.correct[has_positive], predictions.predicted[has_positive]
        per_class = (
            float((correct / np.maximum(predicted, 1)).mean()),
            float((correct / positives[has_positive]).mean()),
        )
        all_correct = int(predictions.correct.sum())
        overall = all_correct / max(1, int(predictions.predicted.sum())), all_correct / int(positives.sum())
        return cls(*per_class, f1(*per_class), *overall, f1(*overall), int((predicted == 0).sum()))


def precision_recall(
    scores: ArrayLike, targets: ArrayLike, thresholds: float | Sequence[float] | ArrayLike = 0.5
) -> PrecisionRecall:
    """CP, CR, CF1, OP, OR and OF1 of the labels whose scores reach their thresholds.

    Args:
        scores: [M, N].
        targets: [M, N] in {1, 0, -1}; unknown entries (-1) are left out.
        thresholds: One for all labels, or one per label [N].

    >>> result = precision_recall(np.array([[0.9, 0.6], [0.2, 0.7]]), np.array([[1, 0], [1, 1]]))
    >>> result.CP, result.CR, round(result.CF1, 4), round(result.OP, 4)
    (0.75, 0.75, 0.75, 0.6667)
    """
    values, known = read_both(scores, targets)
    tally = Tally.of(values, known, read_thresholds(thresholds, values.shape[1]), ())
    return PrecisionRecall.from_counts(tally.by_threshold, tally.positives)


def top_k_precision_recall(scores: ArrayLike, targets: ArrayLike, k: int = 3) -> PrecisionRecall:
    """CP, CR, CF1, OP, OR and OF1 if each image is given its k best labels, whatever their scores.

    Args:
        scores: [M, N].
        targets: [M, N] in {1, 0, -1}; unknown entries (-1) are left out.
        k: Labels per image.

    >>> scores = np.array([[0.9, 0.6, 0.1], [0.2, 0.3, 0.1]])
    >>> result = top_k_precision_recall(scores, np.array([[1, 0, 0], [1, 1, 0]]), k=2)
    >>> result.CP, result.CR, round(result.OF1, 4)
    (0.75, 1.0, 0.8571)
    """
    tally = _top_k_tally(scores, targets, k)
    return PrecisionRecall.from_counts(tally.by_top_k(k), tally.positives)


def f1_at_k(scores: ArrayLike, targets: ArrayLike, k: int = 3) -> float:
    """F1@k of the zero-shot tables (ML-Decoder section 4.2): precision and recall over all images' k best labels.

    Args:
        scores: [M, N].
        targets: [M, N] in {1, 0, -1}; unknown entries (-1) are left out.
        k: Labels per image.

    >>> round(f1_at_k(np.array([[0.9, 0.6, 0.1], [0.2, 0.3, 0.1]]), np.array([[1, 0, 0], [1, 1, 0]]), k=2), 4)
    0.8571
    """
    return top_k_precision_recall(scores, targets, k).OF1


def top_k_accuracy(scores: ArrayLike, targets: ArrayLike, k: int = 1) -> float:
    """Fraction of images that have a correct label among their k best ones.

    Args:
        scores: [M, N].
        targets: Label numbers [M], or [M, N] in {1, 0, -1}. Images without a known positive (or with label number -1)
            are left out.
        k: How many labels may be tried.

    >>> top_k_accuracy(np.array([[0.9, 0.6, 0.1], [0.2, 0.3, 0.1]]), np.array([0, 2]), k=1)
    0.5
    """
    numbers = to_numpy(targets)
    if numbers.ndim != 1:
        return _top_k_tally(scores, targets, k).accuracy(k)
    images, labels = read_scores(scores).shape
    if len(numbers) != images:
        raise LabelwiseError(f"{len(numbers)} label numbers for {images} images; give one per image")
    wrong = (numbers < -1) | (numbers >= labels) | (numbers % 1 != 0)
    if wrong.any():
        row = int(wrong.argmax())
        raise LabelwiseError(f"label number {numbers[row]} at row {row}; use 0 to {labels - 1}, or -1 for unknown")
    one_hot = (numbers[:, None] == np.arange(labels)).astype(np.int8)  # -1 gives a row without a positive
    return _top_k_tally(scores, one_hot, k).accuracy(k)


def f1(precision: float, recall: float) -> float:
    """Harmonic mean; 0 if both are 0.

    >>> round(f1(0.5, 1.0), 4)
    0.6667
    """
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _top_k_tally(scores: ArrayLike, targets: ArrayLike, k: int) -> Tally:
    values, known = read_both(scores, targets)
    return Tally.of(values, known, np.array([np.inf]), (read_k(k),))


def passes_threshold(scores: Scores, thresholds: Doubles) -> Mask:
    """Which scores reach their thresholds [M, N]; equal is enough, as on the precision-recall curve."""
    return scores >= thresholds.astype(scores.dtype)


def in_top_k(scores: Scores, targets: Targets, k: int) -> Mask:
    """The k best known labels of every image [M, N]; of equal scores the first label wins.

    Unknown labels are passed over, so no metric depends on the score of an entry whose truth is unknown.
    """
    known = targets >= 0
    if k >= scores.shape[1]:
        return known
    ranked = np.where(known, scores, -np.inf)
    last = scores.shape[1] - k
    kth = np.partition(ranked, last, axis=1)[:, last, None]  # [M, 1] the k-th best score
    chosen = ranked > kth
    equal = (ranked == kth) & known
    left = k - chosen.sum(axis=1, keepdims=True)
    crowded = (equal.sum(axis=1, keepdims=True) > left)[:, 0]  # rare: only these rows need an order
    equal[crowded] &= equal[crowded].cumsum(axis=1) <= left[crowded]
    selected: Mask = chosen | equal
    return selected


@dataclass(frozen=True)
class LabelCounts:
    """Per label [N]: how often it was predicted (known entries only), and how often correctly."""

    predicted: Ints
    correct: Ints


@dataclass(frozen=True)
class Tally:
    """All counts behind the metrics, in two arrays, so that adding them up or sending them is one operation."""

    top_k: tuple[int, ...]
    labels: Ints  # [4 + 2K, N], rows: known, positives, then (predicted, correct) by threshold and by each k
    images: Ints  # [2 + K]: images, those with a positive, those with a positive among the k best for each k

    @classmethod
    def zero(cls, labels: int, top_k: tuple[int, ...]) -> Self:
        return cls(
            top_k, np.zeros((4 + 2 * len(top_k), labels), dtype=np.int64), np.zeros(2 + len(top_k), dtype=np.int64)
        )

    @classmethod
    def of(
        cls,
        scores: Scores,
        targets: Targets,
        thresholds: Doubles,
        top_k: tuple[int, ...],
        *,
        predicted: Mask | None = None,
        top_k_at_threshold: bool = False,
    ) -> Self:
        """Count the predictions of a batch.

        Args:
            scores: [M, N].
            targets: [M, N] in {1, 0, -1}.
            thresholds: [1] or [N].
            top_k: The numbers of best labels to count for.
            predicted: [M, N], the labels that were predicted, instead of those that reach their thresholds.
            top_k_at_threshold: The k best labels count only if they also reach their thresholds.
        """
        known, positive = targets >= 0, targets == 1
        labels = [known.sum(axis=0), positive.sum(axis=0)]
        images = [len(scores), positive.any(axis=1).sum()]
        by_threshold = (passes_threshold(scores, thresholds) if predicted is None else predicted) & known
        labels += [by_threshold.sum(axis=0), (by_threshold & positive).sum(axis=0)]
        for k in top_k:
            chosen = in_top_k(scores, targets, k)
            if top_k_at_threshold:
                chosen &= by_threshold
            correct = chosen & positive
            labels += [chosen.sum(axis=0), correct.sum(axis=0)]
            images.append(correct.any(axis=1).sum())
        return cls(top_k, np.array(labels, dtype=np.int64), np.array(images, dtype=np.int64))

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.top_k, self.labels + other.labels, self.images + other.images)

    @property
    def known(self) -> Ints:
        known: Ints = self.labels[0]
        return known

    @property
    def positives(self) -> Ints:
        positives: Ints = self.labels[1]
        return positives

    @property
    def by_threshold(self) -> LabelCounts:
        return LabelCounts(self.labels[2], self.labels[3])

    def by_top_k(self, k: int) -> LabelCounts:
        row = 4 + 2 * self.top_k.index(k)
        return LabelCounts(self.labels[row], self.labels[row + 1])

    def accuracy(self, k: int) -> float:
        """Of the images with a positive, the fraction with one among their k best labels; NaN if there are none."""
        with_positive = int(self.images[1])
        return int(self.images[2 + self.top_k.index(k)]) / with_positive if with_positive else float("nan")
