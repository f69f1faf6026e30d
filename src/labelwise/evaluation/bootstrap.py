"""Resampling the images of a test set: confidence intervals, paired differences and which are significant.

Samples are random halves of the images, without replacement. A half varies around the whole set as the whole set does
around all images it was drawn from, so the spread is the right one. The usual bootstrap draws some images twice. Copies
have equal scores, which raises the average precision of rare labels so much that an interval can lie above the number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.core.arrays import Doubles, Ints, Mask, Scores, Targets
from labelwise.core.errors import LabelwiseError
from labelwise.metrics.precision_recall import in_top_k, passes_threshold
from labelwise.metrics.ranking import ArrayLike, read_both, read_thresholds

Weights = NDArray[np.int32]

_BLOCK_VALUES = 2**21  # of weights at a time: small enough for the processor's cache, large enough to keep numpy busy
# The average precision of few positives is too high: one positive at the top is 1, although the next one may be far
# below. This bias falls as images ** -0.75, so a half has 2 ** 0.75 times that of the whole set. The larger it is, the
# less it is known. These numbers are from simulations: benchmarks/intervals.py measures the coverage that they give.
_BIAS_POWER = 0.75
_BIAS_DOUBT = {"mAP": 4.0, "CF1": 1.0}  # their intervals are wider by this multiple of the bias of mAP,
_SIZE_DOUBT = 0.8  # and all by this over the root of the number of images: the spread of few images is uncertain, too


@dataclass(frozen=True)
class Interval:
    """A confidence interval, as fractions."""

    low: float
    high: float


@dataclass(frozen=True)
class Draws:
    """Every metric on every sample, as fractions. The same seed draws the same images for every model that is measured
    on them, so two models' draws can be subtracted (`paired_difference`)."""

    average_precision: Doubles  # [N, S]; NaN where a label has no positive in a sample
    metrics: dict[str, Doubles]  # name -> [S]
    whole_average_precision: Doubles  # [N], of all images
    whole_metrics: dict[str, float]
    images: int

    def intervals(self, level: float) -> dict[str, Interval]:
        half = max(1, self.images // 2)
        # Halves of an odd number are smaller than the rest, and vary more than the whole set.
        wider = (1 + _SIZE_DOUBT / math.sqrt(self.images)) * math.sqrt(half / max(1, self.images - half))
        bias = self.mean_average_precision_bias()
        return {
            name: interval_around(
                self.whole_metrics[name],
                values,
                level,
                bias=bias if name == "mAP" else 0.0,
                wider=wider * (1 + _BIAS_DOUBT.get(name, 0.0) * bias),
            )
            for name, values in self.metrics.items()
        }

    def mean_average_precision_bias(self) -> float:
        """How much too high the mAP of these images is on average, told by how much higher that of their halves is."""
        rise = _mean_defined(self.average_precision.T) - self.whole_average_precision  # [N]
        return max(0.0, float(_mean_defined(rise[:, None])[0])) / (2**_BIAS_POWER - 1)


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
    """Confidence intervals of mAP, CP, CR, CF1, OP, OR, OF1 (and, for each k, the six and the accuracy at top k).

    They are for the metrics of the same labels on ever more images of the same kind. Each sample draws half of the
    images and measures it as `labelwise.metrics` would; a label that has no positive in a sample is left out of that
    sample's averages. An interval always contains the metric of the images themselves.

    Args:
        scores: Scores or logits [M, N].
        targets: [M, N] in {1, 0, -1}; unknown entries count nowhere.
        thresholds: Of the scores: one for all labels, or one per label.
        top_k: Also measure the k best labels of each image.
        samples: How many samples to draw.
        seed: The same seed draws the same images.
        level: The share of test sets whose interval is meant to hold the truth.

    Returns:
        An interval, as fractions, per metric.

    >>> rng = np.random.default_rng(0)
    >>> targets = rng.integers(0, 2, (400, 3))
    >>> interval = bootstrap_intervals(targets + rng.normal(0, 1, (400, 3)), targets, samples=200)["mAP"]
    >>> round(interval.low, 2), round(interval.high, 2)
    (0.76, 0.83)
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

    def measured(weights: Weights) -> tuple[Doubles, dict[str, Doubles]]:
        precision = np.stack([ranking.average_precision(weights) for ranking in rankings])
        others = _precision_recall(weights.T.astype(np.float64), known, chosen)
        return precision, {"mAP": _mean_defined(precision), **others}

    whole, whole_metrics = measured(np.ones((len(values), 1), np.int32))
    blocks = [measured(weights) for weights in _halves(len(values), samples, np.random.default_rng(seed))]
    return Draws(
        np.concatenate([precision for precision, _ in blocks], axis=1),
        {name: np.concatenate([metrics[name] for _, metrics in blocks]) for name in whole_metrics},
        whole[:, 0],
        {name: float(value[0]) for name, value in whole_metrics.items()},
        len(values),
    )


def interval_around(
    value: float, values: Doubles, level: float, *, lowest: float = 0.0, bias: float = 0.0, wider: float = 1.0
) -> Interval:
    """The normal interval of a `value` with a known `bias`, as wide as the spread of the samples' `values` [S] says;
    NaN is left out.

    It always contains `value`, also where the bias is so large that the truth is probably below it, and stays between
    `lowest` and 1.

    >>> found = interval_around(0.5, np.array([0.59, 0.61, np.nan]), 0.95)  # 0.5 +- 1.96 * 0.01
    >>> round(found.low, 4), round(found.high, 4)
    (0.4804, 0.5196)
    >>> round(interval_around(0.5, np.array([0.59, 0.61]), 0.95, bias=0.1).low, 4)
    0.3804
    """
    values = values[~np.isnan(values)]
    if not len(values) or np.isnan(value):
        return Interval(np.nan, np.nan)
    half = NormalDist().inv_cdf((1 + level) / 2) * float(values.std()) * wider
    low, high = value - bias - half, value - bias + half
    return Interval(min(value, max(low, lowest)), max(value, min(high, 1.0)))


def _halves(images: int, samples: int, rng: np.random.Generator) -> Iterator[Weights]:
    """Random halves as weights 1 and 0, in blocks [M, s]: images first, so that taking rows in order is fast."""
    step = max(1, _BLOCK_VALUES // images)
    half = (np.arange(images) < max(1, images // 2)).astype(np.int32)
    for start in range(0, samples, step):
        drawn = rng.permuted(np.tile(half, (min(step, samples - start), 1)), axis=1)
        yield np.ascontiguousarray(drawn.T)


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
    """The difference `value` with the interval and p-value that paired samples [S] give it.

    Both models rise and fall together from sample to sample, so their difference varies far less than either: it can be
    significant although their intervals overlap. What bias both have falls out of the difference. The p-value is
    two-sided and, like the interval, that of a normal distribution: below 0.05 where the 95 % interval excludes 0.

    >>> theirs = np.linspace(0.70, 0.80, 99)
    >>> found = paired_difference(0.02, theirs + np.linspace(0.01, 0.03, 99), theirs)
    >>> round(found.interval.low, 4), round(found.interval.high, 4), round(found.p, 4)
    (0.0086, 0.0314, 0.0006)
    """
    gaps = ours - theirs
    gaps = gaps[~np.isnan(gaps)]
    if not len(gaps) or np.isnan(value):
        return Difference(value, Interval(np.nan, np.nan), np.nan)
    spread = float(gaps.std())
    p = 1.0 if value == 0 else 2 * NormalDist().cdf(-abs(value) / spread) if spread else 0.0
    return Difference(value, interval_around(value, gaps, level, lowest=-1.0), p)


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
