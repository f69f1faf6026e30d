"""The score from which each label applies, read off the precision-recall curve of validation data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import LabelwiseError, unknown_name
from labelwise.metrics.inputs import ArrayLike, Bytes, Floats, Mask, read_both

Rule = Literal["f1", "precision", "recall"]

_NO_EVIDENCE = 0.5  # when the data says nothing about any label


@dataclass(frozen=True)
class ThresholdFit:
    values: NDArray[np.float64]  # [N]
    fallback: Mask  # [N] labels without a known positive, or that cannot reach the target: given the others' median


def fit_thresholds(
    scores: ArrayLike, targets: ArrayLike, rule: Rule = "f1", target: float | None = None
) -> NDArray[np.float64]:
    """One threshold per label [N] for probabilities `scores` [M, N] and `targets` [M, N] in {1, 0, -1}.

    `f1` has the highest F1; `precision` the highest recall among those with at least `target` precision; `recall` the
    highest precision threshold with at least `target` recall. A score equal to its threshold passes.

    >>> scores = np.array([[0.9], [0.8], [0.6], [0.4], [0.2]])
    >>> fit_thresholds(scores, np.array([[1], [1], [0], [1], [0]])).round(4).tolist()  # between 0.4 and 0.2
    [0.3]
    >>> fit_thresholds(scores, np.array([[1], [1], [0], [1], [0]]), "precision", 0.9).round(4).tolist()
    [0.7]
    """
    return threshold_fit(scores, targets, rule, target).values


def threshold_fit(
    scores: ArrayLike, targets: ArrayLike, rule: Rule = "f1", target: float | None = None
) -> ThresholdFit:
    """`fit_thresholds`, and which labels had to fall back: they get the median of the other labels' thresholds."""
    _check_rule(rule, target)
    values, known = read_both(scores, targets)
    fitted = np.array(
        [_fit_label(values[:, n], known[:, n], rule, target or 0.0) for n in range(values.shape[1])], np.float64
    )  # [N], NaN where nothing could be fitted
    fallback = np.isnan(fitted)
    typical = float(np.median(fitted[~fallback])) if not fallback.all() else _NO_EVIDENCE
    return ThresholdFit(np.where(fallback, typical, fitted), fallback)


def parse_rule(text: str) -> tuple[Rule, float | None]:
    """A rule as the command line spells it.

    >>> parse_rule("f1"), parse_rule("precision=0.9")
    (('f1', None), ('precision', 0.9))
    """
    name, equals, number = text.partition("=")
    if name not in get_args(Rule):
        raise unknown_name("threshold rule", name, ["f1", "precision=0.9", "recall=0.8"])
    rule: Rule = next(known for known in get_args(Rule) if known == name)
    try:
        target = float(number) if equals else None
    except ValueError:
        raise LabelwiseError(f"threshold rule {text!r}: {number!r} is not a number") from None
    _check_rule(rule, target)
    return rule, target


def _check_rule(rule: str, target: float | None) -> None:
    if rule not in get_args(Rule):
        raise unknown_name("threshold rule", rule, get_args(Rule))
    if rule == "f1" and target is not None:
        raise LabelwiseError("the threshold rule 'f1' takes no target; write just f1")
    if rule != "f1" and (target is None or not 0 < target <= 1):
        raise LabelwiseError(f"the threshold rule {rule!r} needs a target above 0 and up to 1, such as {rule}=0.9")


def _fit_label(scores: Floats, targets: Bytes, rule: Rule, target: float) -> float:
    """The threshold of one label from scores [M] and targets [M]; NaN if there is none.

    Sorted from the best score down, cut point k predicts the first k+1 entries. Equal scores pass together, so only
    the last entry of each run of equal scores is a cut point.
    """
    known = targets >= 0
    order = np.argsort(-scores[known], kind="stable")
    ranked, positive = scores[known][order], (targets[known] == 1)[order]
    positives = int(positive.sum())
    if not positives:
        return math.nan
    cuts = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # [C], thresholds fall along it
    correct, predicted = positive.cumsum()[cuts], cuts + 1
    if rule == "f1":
        f1 = 2 * correct / (predicted + positives)  # = 2PR / (P + R)
        best = int(f1.argmax())  # of equals the first: the fewest predictions
    elif rule == "precision":
        reached = np.flatnonzero(correct / predicted >= target)
        if not len(reached):
            return math.nan
        best = int(reached[-1])
    else:
        best = int((correct / positives >= target).argmax())  # the last cut has recall 1
    return _between(ranked, int(cuts[best]))


def _between(ranked: NDArray[Any], last: int) -> float:
    """The middle of the gap below the last entry that passes: new data falls on either side of it alike.

    Computed in the scores' own type: a finer number could be rounded onto the lower neighbour when it is compared.
    """
    above = ranked[last]
    if last + 1 == len(ranked):
        return float(above)
    below = ranked[last + 1]
    with np.errstate(invalid="ignore", over="ignore"):  # infinite scores rank, too
        middle = below / 2 + above / 2
    return float(middle) if below < middle <= above else float(above)
