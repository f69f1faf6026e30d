"""Is one model really better than another? Both are measured on the same samples of the images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.evaluation.bootstrap import Doubles, Interval, middle
from labelwise.metrics.inputs import Mask


@dataclass(frozen=True)
class Difference:
    """Of two fractions that were measured on the same images."""

    value: float
    interval: Interval
    p: float  # how often chance alone would show a difference this far from 0; NaN if there is nothing to compare


def paired_difference(value: float, ours: Doubles, theirs: Doubles, level: float = 0.95) -> Difference:
    """The difference `value` with what the samples [S] of both say about it.

    Samples of the same images move both models up and down together; their difference varies far less than either, so
    intervals that overlap can still hide a real difference. `p` is two-sided: twice the smaller share of samples on
    one side of 0, each side counted with one sample more than there were, so that it is never 0.

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
    return Difference(value, middle(gaps, level), float(min(1.0, 2 * min(below, above) / (len(gaps) + 1))))


def discoveries(p: NDArray[np.float64], share: float = 0.05) -> Mask:
    """Which of many differences can be called real: of those, about `share` are expected to be luck (Benjamini and
    Hochberg 1995). Without it, 1 in 20 labels would seem to differ between two equal models. NaN is never called real.

    >>> discoveries(np.array([0.01, 0.04, 0.03, np.nan, 0.9])).tolist()
    [True, False, False, False, False]
    """
    defined = np.flatnonzero(~np.isnan(p))
    order = defined[np.argsort(p[defined], kind="stable")]
    passing = np.flatnonzero(p[order] <= share * np.arange(1, len(order) + 1) / max(len(order), 1))
    real = np.zeros(len(p), bool)
    real[order[: passing[-1] + 1 if len(passing) else 0]] = True
    return real
