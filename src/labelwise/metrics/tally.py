"""Whole-number counts behind every metric but AP. They add up over batches and processes, so results are exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from labelwise.metrics.inputs import Bytes, Floats, Ints, Mask


def passes_threshold(scores: Floats, thresholds: NDArray[np.float64]) -> Mask:
    """A score equal to its threshold passes, as on the precision-recall curve that thresholds are read from."""
    return scores >= thresholds.astype(scores.dtype)


def in_top_k(scores: Floats, targets: Bytes, k: int) -> Mask:
    """The k best known labels of every image [M, N]; of equal scores the label that comes first wins.

    Unknown labels take no place, so no number depends on the score of an entry nobody knows the truth of.
    """
    known = targets >= 0
    if k >= scores.shape[1]:
        return known
    ranked = np.where(known, scores, -np.inf)
    last_place = scores.shape[1] - k
    kth = np.partition(ranked, last_place, axis=1)[:, last_place, None]  # [M, 1] the k-th best score
    chosen = ranked > kth
    equal = (ranked == kth) & known
    places_left = k - chosen.sum(axis=1, keepdims=True)
    crowded = (equal.sum(axis=1, keepdims=True) > places_left)[:, 0]  # rare: only these rows need an order
    equal[crowded] &= equal[crowded].cumsum(axis=1) <= places_left[crowded]
    selected: Mask = chosen | equal
    return selected


@dataclass(frozen=True)
class Predictions:
    """Per label [N]: how often it was predicted (known entries only), and how often rightly."""

    predicted: Ints
    correct: Ints


@dataclass(frozen=True)
class Tally:
    """`labels` [4 + 2K, N] and `images` [2 + K] hold all counts, so that adding or sending them is one operation."""

    top_k: tuple[int, ...]
    labels: Ints  # rows: known, positives, then (predicted, correct) by threshold and by each k
    images: Ints  # images, images with a positive, then those of them with a positive among the k best, by each k

    @classmethod
    def zero(cls, labels: int, top_k: tuple[int, ...]) -> Self:
        return cls(
            top_k, np.zeros((4 + 2 * len(top_k), labels), dtype=np.int64), np.zeros(2 + len(top_k), dtype=np.int64)
        )

    @classmethod
    def of(cls, scores: Floats, targets: Bytes, thresholds: NDArray[np.float64], top_k: tuple[int, ...]) -> Self:
        known, positive = targets >= 0, targets == 1
        labels = [known.sum(axis=0), positive.sum(axis=0)]
        images = [len(scores), positive.any(axis=1).sum()]
        by_threshold = passes_threshold(scores, thresholds) & known
        labels += [by_threshold.sum(axis=0), (by_threshold & positive).sum(axis=0)]
        for k in top_k:
            chosen = in_top_k(scores, targets, k)
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
    def by_threshold(self) -> Predictions:
        return Predictions(self.labels[2], self.labels[3])

    def by_top_k(self, k: int) -> Predictions:
        row = 4 + 2 * self.top_k.index(k)
        return Predictions(self.labels[row], self.labels[row + 1])

    def accuracy(self, k: int) -> float:
        """Share of the images with a positive whose k best labels hold one; NaN if no image has any."""
        with_positive = int(self.images[1])
        return int(self.images[2 + self.top_k.index(k)]) / with_positive if with_positive else float("nan")
