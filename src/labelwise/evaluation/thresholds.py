"""Thresholds: the score from which each label applies, fitted on validation data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from labelwise.core.arrays import Doubles, Mask, Scores, Targets
from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.data.inspection import FEW
from labelwise.evaluation.auto_thresholds import auto_thresholds
from labelwise.evaluation.calibration import fit_platt, fit_temperature
from labelwise.metrics.ranking import ArrayLike, read_both
from labelwise.model.config import ModelConfig
from labelwise.runtime.prediction import probabilities

Rule = Literal["auto", "f1", "precision", "recall"]

_NO_EVIDENCE = 0.5  # when the data says nothing about any label


@dataclass(frozen=True)
class ThresholdFit:
    """Fitted thresholds, and which of them are a fallback."""

    values: Doubles  # [N]
    fallback: Mask  # [N] labels with too few positives, or that cannot reach the target: see `threshold_fit`


def fit_thresholds(scores: ArrayLike, targets: ArrayLike, rule: Rule = "f1", target: float | None = None) -> Doubles:
    """Fit one threshold per label. A score equal to its threshold passes.

    Args:
        scores: Probabilities [M, N].
        targets: [M, N] in {1, 0, -1}.
        rule: `auto`: the best CF1 and OF1 that can be expected on other images (`evaluation/auto_thresholds.py`);
            `f1`: the highest F1 on these images, which misleads if they are few; `precision`: the highest recall with
            at least `target` precision; `recall`: the highest threshold with at least `target` recall.
        target: Of the rules `precision` and `recall`.

    Returns:
        Thresholds [N].

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
    """`fit_thresholds`, and the labels to be careful with.

    With `auto` these have fewer than ten positives. With other rules they have none, or cannot reach the target; they
    get the median of the others' thresholds.
    """
    _check_rule(rule, target)
    values, known = read_both(scores, targets)
    if rule == "auto":
        positives = (known == 1).sum(axis=0)
        fitted = auto_thresholds(values, known) if positives.any() else np.full(len(positives), _NO_EVIDENCE)
        return ThresholdFit(fitted, positives < FEW)
    labels = zip(values.T, known.T, strict=True)
    fitted = np.array([_fit_label(*label, rule, target or 0.0) for label in labels])  # [N], NaN: could not be fitted
    fallback = np.isnan(fitted)
    typical = float(np.median(fitted[~fallback])) if not fallback.all() else _NO_EVIDENCE
    return ThresholdFit(np.where(fallback, typical, fitted), fallback)


def parse_rule(text: str) -> tuple[Rule, float | None]:
    """A rule and its target from text.

    >>> parse_rule("f1"), parse_rule("precision=0.9")
    (('f1', None), ('precision', 0.9))
    """
    name, equals, number = text.partition("=")
    if name not in get_args(Rule):
        raise unknown_name("threshold rule", name, ["auto", "f1", "precision=0.9", "recall=0.8"])
    try:
        target = float(number) if equals else None
    except ValueError:
        raise LabelwiseError(f"threshold rule {text!r}: {number!r} is not a number") from None
    _check_rule(name, target)
    return cast(Rule, name), target


def _check_rule(rule: str, target: float | None) -> None:
    if rule not in get_args(Rule):
        raise unknown_name("threshold rule", rule, get_args(Rule))
    if rule in ("auto", "f1") and target is not None:
        raise LabelwiseError(f"the threshold rule {rule!r} takes no target; write just {rule}")
    if rule in ("precision", "recall") and (target is None or not 0 < target <= 1):
        raise LabelwiseError(f"the threshold rule {rule!r} needs a target above 0 and up to 1, such as {rule}=0.9")


def _fit_label(scores: Scores, targets: Targets, rule: Rule, target: float) -> float:
    """The threshold of one label from scores [M] and targets [M]; NaN if there is none.

    By descending score, cut point k predicts the first k + 1 entries. Equal scores pass together, so only the last
    entry of each run of equal scores is a cut point.
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
        best = int(f1.argmax())  # the first of equals has the fewest predictions
    elif rule == "precision":
        reached = np.flatnonzero(correct / predicted >= target)
        if not len(reached):
            return math.nan
        best = int(reached[-1])
    else:
        best = int((correct / positives >= target).argmax())  # the last cut has recall 1
    return _between(ranked, int(cuts[best]))


def _between(ranked: NDArray[Any], last: int) -> float:
    """The middle of the gap below the last entry that passes.

    Computed in the scores' own type: a finer number could be rounded to the lower neighbour when it is compared.
    """
    above = ranked[last]
    if last + 1 == len(ranked):
        return float(above)
    below = ranked[last + 1]
    with np.errstate(invalid="ignore", over="ignore"):  # infinite scores rank, too
        middle = below / 2 + above / 2
    return float(middle) if below < middle <= above else float(above)


@dataclass(frozen=True)
class Fit:
    """A config with new temperature, offset and thresholds."""

    config: ModelConfig
    fallback_labels: tuple[str, ...]  # to be careful with: see `threshold_fit`


def fit_config(
    config: ModelConfig,
    logits: NDArray[np.float32],
    targets: Targets,
    *,
    thresholds: str | None = None,
    temperature: bool = False,
) -> Fit:
    """Fit a model's calibration and thresholds.

    Calibration comes first, because thresholds are scores. Thresholds that are not fitted again are converted to the
    new calibration, so that they decide as before.

    Args:
        config: The model's config.
        logits: [M, N].
        targets: [M, N] in {1, 0, -1}.
        thresholds: A rule: `auto`, `f1`, `precision=0.9`, `recall=0.8`; None fits no thresholds.
        temperature: Whether to fit the temperature and, for multi-label models, the offset.
    """
    single = config.task == "single-label"
    if single and thresholds is not None:
        raise LabelwiseError("a single-label model always gives its best label; there are no thresholds to fit")
    fallback: tuple[str, ...] = ()
    if temperature and single:  # a softmax ignores an offset
        config = config.model_copy(update={"temperature": fit_temperature(logits, targets, config.task)})
    elif temperature:
        cuts = logit_thresholds(config)
        scale, offset = fit_platt(logits, targets)  # an offset, if a loss has pushed all logits to one side
        config = config.model_copy(update={"temperature": scale, "offset": offset})
        if config.thresholds is not None:
            moved = 1 / (1 + np.exp((offset - cuts) / scale))
            config = config.model_copy(update={"thresholds": tuple(moved.tolist())})
    if thresholds is not None:
        rule, target = parse_rule(thresholds)
        fit = threshold_fit(probabilities(logits, config), targets, rule, target)
        config = config.model_copy(update={"thresholds": tuple(fit.values.tolist())})
        fallback = tuple(np.array(config.labels, object)[fit.fallback])
    return Fit(config, fallback)


def logit_thresholds(config: ModelConfig) -> Doubles:
    """The logits [N] at which a multi-label model's scores reach their thresholds: T log(t / (1 - t)) + b. For
    distances from them; `decide` says which labels apply.

    >>> from labelwise.backbones import BackboneConfig
    >>> from labelwise.heads.gap import GapConfig
    >>> from labelwise.data.preprocessing import Preprocessing
    >>> parts = {"backbone": BackboneConfig(name="resnet10t"), "head": GapConfig(), "preprocessing": Preprocessing()}
    >>> config = ModelConfig(**parts, labels=("cat", "dog"), temperature=2.0, thresholds=(0.5, 0.75))
    >>> logit_thresholds(config).round(4).tolist()
    [0.0, 2.1972]
    """
    # 0 lets everything pass, 1 what rounds to 1.
    t = np.clip(np.array(config.label_thresholds), np.finfo(np.float64).tiny, 1 - 2**-53)
    cuts: Doubles = config.temperature * (np.log(t) - np.log1p(-t)) + config.offset
    return cuts
