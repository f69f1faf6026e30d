"""Bootstrap over the images of a test set: percentile intervals, paired differences and which are significant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.core.arrays import Doubles, Ints, Mask, Scores, Targets
from labelwise.core.errors import LabelwiseError
from labelwise.metrics.precision_recall import in_top_k, passes_threshold
from labelwise.metrics.ranking import ArrayLike, read_both, read_thresholds

Weights = NDArray[np.int32]

_BLOCK_VALUES = 2**21  # of weights at a time: small enough for the processor's cache, large enough to keep numpy busy


@dataclass(frozen=True)
class Interval:
    """A percentile interval, as fractions."""

    low: float
    high: float


@dataclass(frozen=True)
class Draws:
    """Every metric on every bootstrap sample, as fractions. The same seed draws the same images for every model that is
    measured on them, so two models' draws can be subtracted (`paired_difference`)."""

    average_precision: Doubles  # [N, S]; NaN where a label has no positive in a sample
    metrics: dict[str, Doubles]  # name -> [S]

    def intervals(self, level: float) -> dict[str, Interval]:
        return {name: percentile_interval(values, level) for name, values in self.metrics.items()}


def bootstrap_intervals(
    scores: ArrayLike,
    targets: ArrayLike,
    *,
    thresholds: float | Sequence[float] | ArrayLike = 0.5,
    top_k: Sequence[int] = (),
    samples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Interval]:
    """Percentile intervals of mAP, CP, CR, CF1, OP, OR, OF1 (and, for each k, the six and the accuracy at top k).

    Each sample draws M of the M images with replacement and measures it as `labelwise.metrics` would; a label that has
    no positive in a sample is left out of that sample's averages.

    Args:
        scores: Scores or logits [M, N].
        targets: [M, N] in {1, 0, -1}; unknown entries count nowhere.
        thresholds: Of the scores: one for all labels, or one per label.
        top_k: Also measure the k best labels of each image.
        samples: How many samples to draw.
        seed: The same seed draws the same images.
        level: The share of the samples that an interval holds.

    Returns:
        An interval, as fractions, per metric.

    >>> rng = np.random.default_rng(0)
    >>> targets = rng.integers(0, 2, (400, 3))
    >>> interval = bootstrap_intervals(targets + rng.normal(0, 1, (400, 3)), targets, samples=200)["mAP"]
    >>> round(interval.low, 2), round(interval.high, 2)
    (0.76, 0.82)
    """
    if not 0 < level < 1:
        raise LabelwiseError(f"level={level}: use a level between 0 and 1")
    draws = bootstrap_draws(scores, targets, thresholds=thresholds, top_k=top_k, samples=samples, seed=seed)
    return draws.intervals(level)


def bootstrap_draws(
    scores: ArrayLike,
    targets: ArrayLike,
    *,
    thresholds: float | Sequence[float] | ArrayLike = 0.5,
    predicted: Mask | None = None,
    top_k: Sequence[int] = (),
    samples: int = 1000,
    seed: int = 0,
) -> Draws:
    """Like `bootstrap_intervals`, but with the value of every sample, also of every label's average precision.

    `predicted` [M, N] says which labels were predicted, instead of the thresholds.
    """
    values, known = read_both(scores, targets)
    if samples < 1:
        raise LabelwiseError(f"samples={samples}: use at least 1 sample")
    if not len(values):
        raise LabelwiseError("there are no images to draw samples from")
    if predicted is None:
        predicted = passes_threshold(values, read_thresholds(thresholds, values.shape[1]))
    chosen = {"": predicted} | {f"_top{k}": in_top_k(values, known, k) for k in top_k}
    rankings = [RankedLabel.of(values[:, n], known[:, n]) for n in range(values.shape[1])]
    precisions, metrics = [], []
    for weights in _resamples(len(values), samples, np.random.default_rng(seed)):
        precisions.append(np.stack([ranking.average_precision(weights) for ranking in rankings]))
        others = _precision_recall(weights.T.astype(np.float64), known, chosen)
        metrics.append({"mAP": _mean_defined(precisions[-1]), **others})
    return Draws(
        np.concatenate(precisions, axis=1),
        {name: np.concatenate([block[name] for block in metrics]) for name in metrics[0]},
    )


def percentile_interval(values: Doubles, level: float) -> Interval:
    """The interval between the two percentiles that leave `level` of the values [S] between them; NaN is left out.

    >>> percentile_interval(np.array([*range(101), np.nan]), 0.5)
    Interval(low=25.0, high=75.0)
    """
    values = values[~np.isnan(values)]
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(values, [tail, 100 - tail]) if len(values) else (np.nan, np.nan)
    return Interval(float(low), float(high))


def _resamples(images: int, samples: int, rng: np.random.Generator) -> Iterator[Weights]:
    """How often each image was drawn, in blocks [M, s]: images first, so that taking rows in order is fast."""
    step = max(1, _BLOCK_VALUES // images)
    for start in range(0, samples, step):
        count = min(step, samples - start)
        drawn = rng.integers(0, images, (count, images)) + np.arange(count)[:, None] * images
        weights = np.bincount(drawn.ravel(), minlength=count * images).reshape(count, images)
        yield np.ascontiguousarray(weights.T, dtype=np.int32)


@dataclass(frozen=True)
class RankedLabel:
    """One label's known images by descending score: sorted once, then every weighting of them gives an AP."""

    order: Ints  # [m] images down to the lowest positive; those below do not change the AP
    positive: Mask  # [m] in that order
    starts: Ints  # [G] where the stretches begin; each ends with a run of equal scores that holds a positive

    @classmethod
    def of(cls, scores: Scores, targets: Targets) -> RankedLabel:
        known = np.flatnonzero(targets >= 0)
        order = known[np.argsort(-scores[known], kind="stable")]
        ranked, positive = scores[order], targets[order] == 1
        run_ends = np.flatnonzero(ranked[1:] != ranked[:-1]) + 1  # of equal scores
        run_ends = np.append(run_ends, len(ranked))[: len(ranked)]
        found = np.diff(positive.cumsum()[run_ends - 1], prepend=0) > 0
        ends = np.concatenate([[0], run_ends[found]])
        return cls(order[: ends[-1]].copy(), positive[: ends[-1]], ends[:-1])

    def average_precision(self, weights: Weights) -> Doubles:
        """AP [s] of the images, each counted `weights` [M, s] times; NaN where no positive was drawn.

        A stretch's precision is that at its lowest score; each positive in it is one step of recall at that precision.
        """
        if not len(self.order):
            return np.full(weights.shape[1], np.nan)
        drawn = weights[self.order]  # [m, s], a copy
        known_above = np.add.reduceat(drawn, self.starts, axis=0).cumsum(axis=0)  # [G, s]
        drawn[~self.positive] = 0
        steps = np.add.reduceat(drawn, self.starts, axis=0)  # [G, s]
        correct_above = steps.cumsum(axis=0)
        area = (steps * (correct_above / np.maximum(known_above, 1))).sum(axis=0)
        return _divide(area, correct_above[-1])


def _precision_recall(weights: Doubles, targets: Targets, chosen: dict[str, Mask]) -> dict[str, Doubles]:
    """Every metric for every row of `weights` [s, M]; `chosen`: predictions [M, N] by the suffix of their names."""
    positive = targets == 1
    positives = weights @ positive  # [s, N]
    with_positive = weights @ positive.any(axis=1)  # [s] images
    result: dict[str, Doubles] = {}
    for suffix, passes in chosen.items():
        predicted = weights @ (passes & (targets >= 0))
        correct = weights @ (passes & positive)
        per_label = np.where(positives > 0, correct / np.maximum(predicted, 1), np.nan), _divide(correct, positives)
        right, among, of = correct.sum(1), predicted.sum(1), positives.sum(1)  # [s]
        overall = np.where(of > 0, right / np.maximum(among, 1), np.nan), _divide(right, of)
        for kind, (precision, recall) in {"C": [_mean_defined(each.T) for each in per_label], "O": overall}.items():
            f1 = _f1(precision, recall)
            result |= {f"{kind}P{suffix}": precision, f"{kind}R{suffix}": recall, f"{kind}F1{suffix}": f1}
        if suffix:
            result[f"accuracy{suffix}"] = _divide(weights @ (passes & positive).any(axis=1), with_positive)
    return result


def _mean_defined(values: Doubles) -> Doubles:
    """Mean over labels of [N, s] without NaN; a column of nothing but NaN gives NaN."""
    defined = ~np.isnan(values)
    return _divide(np.where(defined, values, 0).sum(axis=0), defined.sum(axis=0))


def _divide(part: NDArray[Any], whole: NDArray[Any]) -> Doubles:
    """NaN instead of a division by zero."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def _f1(precision: Doubles, recall: Doubles) -> Doubles:
    total = precision + recall
    return np.where(total == 0, 0.0, 2 * precision * recall / np.where(total == 0, 1, total))


@dataclass(frozen=True)
class Difference:
    """The difference of two fractions that were measured on the same images."""

    value: float
    interval: Interval
    p: float  # two-sided p-value; NaN if there is nothing to compare


def paired_difference(value: float, ours: Doubles, theirs: Doubles, level: float = 0.95) -> Difference:
    """The difference `value` with the interval and p-value that paired bootstrap samples [S] give it.

    Both models rise and fall together from sample to sample, so their difference varies far less than either: it can be
    significant although their intervals overlap. The p-value is two-sided: twice the smaller share of samples on one
    side of 0, with one sample added to each side so that it is never 0.

    >>> theirs = np.linspace(0.70, 0.80, 99)
    >>> found = paired_difference(0.02, theirs + np.linspace(0.01, 0.03, 99), theirs)
    >>> round(found.interval.low, 4), round(found.interval.high, 4), found.p
    (0.0105, 0.0295, 0.02)
    """
    gaps = ours - theirs
    gaps = gaps[~np.isnan(gaps)]
    if not len(gaps) or np.isnan(value):
        return Difference(value, Interval(np.nan, np.nan), np.nan)
    below, above = (gaps <= 0).sum() + 1, (gaps >= 0).sum() + 1
    return Difference(value, percentile_interval(gaps, level), float(min(1.0, 2 * min(below, above) / (len(gaps) + 1))))


def benjamini_hochberg(p: NDArray[np.float64], rate: float = 0.05) -> Mask:
    """Which of many p-values [N] are significant at a false discovery rate of `rate` (Benjamini and Hochberg 1995).

    Without it, 1 in 20 labels would seem to differ between two equal models. NaN is never significant.

    >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03, np.nan, 0.9])).tolist()
    [True, False, False, False, False]
    """
    defined = np.flatnonzero(~np.isnan(p))
    order = defined[np.argsort(p[defined], kind="stable")]
    passing = np.flatnonzero(p[order] <= rate * np.arange(1, len(order) + 1) / max(len(order), 1))
    significant = np.zeros(len(p), bool)
    significant[order[: passing[-1] + 1 if len(passing) else 0]] = True
    return significant
