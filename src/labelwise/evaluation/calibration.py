"""Calibration: the expected calibration error, and the temperature and offset that fix most of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from labelwise.core.arrays import Doubles, Targets
from labelwise.core.errors import LabelwiseError
from labelwise.metrics.ranking import ArrayLike, read_both

Task = Literal["multi-label", "single-label"]

# Labels that the logits separate without an error would push the temperature to 0, and all scores to 0 or 1.
LOWEST, HIGHEST = 0.05, 20.0
_NEWTON_STEPS, _NO_STEP = 100, 1e-9
_HALVINGS = 50  # of log(HIGHEST / LOWEST) = 6: far below the precision of a float


def fit_temperature(logits: ArrayLike, targets: ArrayLike, task: Task = "multi-label") -> float:
    """The temperature T in [0.05, 20] with the lowest cross-entropy of sigmoid(logits / T); 1 without any known entry.

    Dividing by T changes no ranking of a multi-label model, so mAP stays the same.

    Args:
        logits: [M, N].
        targets: [M, N] in {1, 0, -1}.
        task: `single-label` fits softmax(logits / T) on the images with exactly one present label.

    >>> logits = np.array([[4.0], [4.0], [4.0], [4.0], [-4.0]])  # says 98 % where 3 of 4 are right
    >>> targets = np.array([[1], [1], [1], [0], [-1]])
    >>> round(fit_temperature(logits, targets), 3), round(4 / math.log(3), 3)
    (3.641, 3.641)
    """
    values, known = read_both(logits, targets)
    if not np.isfinite(values).all():
        raise LabelwiseError("the logits are not all finite; fix the model's output")
    slope = (_sigmoid_slope if task == "multi-label" else _softmax_slope)(values.astype(np.float64), known)
    if slope is None or slope(1.0) == 0:
        return 1.0
    # The cross-entropy is convex in a = 1/T: its slope only rises, so halving the interval finds the zero.
    low, high = -math.log(HIGHEST), -math.log(LOWEST)  # of log a
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if slope(math.exp(middle)) <= 0:  # 0: scores rounded to 0 and 1, all of them right
            low = middle
        else:
            high = middle
    return math.exp(-(low + high) / 2)


def fit_platt(logits: ArrayLike, targets: ArrayLike) -> tuple[float, float]:
    """The temperature T in [0.05, 20] and the offset b with the lowest cross-entropy of sigmoid((logits - b) / T) on
    known entries [M, N]: logistic regression on one variable, the same for all labels, so that it changes no ranking.

    Targets are softened as in Platt (1999), which keeps T and b finite where all entries are alike or the logits
    separate them without an error. Without any known entry, 1 and 0.

    >>> logits = np.repeat([[3.0], [5.0]], 40, axis=0)  # as if 95 and 99 % were present, where 1 and 3 of 4 are
    >>> targets = np.array([[1], [0], [0], [0]] * 10 + [[1], [1], [1], [0]] * 10)
    >>> temperature, offset = fit_platt(logits, targets)
    >>> round(temperature, 1), round(offset, 1)
    (1.0, 4.0)
    """
    values, read = read_both(logits, targets)
    if not np.isfinite(values).all():
        raise LabelwiseError("the logits are not all finite; fix the model's output")
    known = read >= 0
    z, positive = values[known].astype(np.float64), read[known] == 1
    if not len(z):
        return 1.0, 0.0
    positives = int(positive.sum())
    goal = np.where(positive, (positives + 1) / (positives + 2), 1 / (len(z) - positives + 2))
    slope, shift = _logistic_regression(z, goal, np.array([1.0, 0.0]), free=(0, 1))  # sigmoid(slope z - shift)
    if not 1 / HIGHEST <= slope <= 1 / LOWEST:
        bound = min(max(slope, 1 / HIGHEST), 1 / LOWEST)  # above 0: what scored more still does
        slope, shift = _logistic_regression(z, goal, np.array([bound, shift]), free=(1,))
    return 1 / slope, shift / slope


def expected_calibration_error(scores: ArrayLike, targets: ArrayLike, bins: int = 15) -> float:
    """Expected calibration error of probabilities [M, N], as a fraction.

    The known entries of all labels fall into `bins` bins of equal width over [0, 1]; the ECE is the mean of
    |mean score - share of positives| over the bins, weighted by their entries. NaN if nothing is known.

    Args:
        scores: Probabilities [M, N].
        targets: [M, N] in {1, 0, -1}.
        bins: How many bins.

    >>> round(expected_calibration_error(np.array([[0.9], [0.9], [0.1]]), np.array([[1], [0], [0]])), 4)
    0.3
    """
    values, targets_read = read_both(scores, targets)
    known = targets_read >= 0
    probability, positive = values[known].astype(np.float64), targets_read[known] == 1
    if not len(probability):
        return math.nan
    if probability.min() < 0 or probability.max() > 1:
        raise LabelwiseError("calibration needs scores from 0 to 1; give probabilities, not logits")
    place = np.minimum((probability * bins).astype(np.int64), bins - 1)  # a score of 1 belongs to the last bin
    difference = np.bincount(place, probability - positive, minlength=bins)  # [bins] count x (score - share)
    return float(np.abs(difference).sum() / len(probability))


def sigmoid(values: Doubles) -> Doubles:
    """1 / (1 + exp(-x)), without overflow."""
    result: Doubles = 0.5 * (1 + np.tanh(0.5 * values))
    return result


def _logistic_regression(z: Doubles, goal: Doubles, start: Doubles, free: tuple[int, ...]) -> tuple[float, float]:
    """Newton's method for the cross-entropy of sigmoid(x[0] z - x[1]) with the shares `goal`, in the `free` ones of
    both numbers. It is convex: half steps where a whole one goes too far lead to the one minimum."""

    def loss(x: Doubles) -> float:
        y = x[0] * z - x[1]
        return float((np.logaddexp(0, y) - goal * y).mean())

    x, places = start, np.array(free)
    current = loss(x)
    for _ in range(_NEWTON_STEPS):
        score = sigmoid(x[0] * z - x[1])
        features = np.stack((z, -np.ones_like(z)))[places]  # [2 or 1, m]
        gradient = features @ (score - goal) / len(z)
        curvature = (features * (score * (1 - score))) @ features.T / len(z)
        step = np.zeros(2)
        # Logits that are all the same leave a direction without curvature, in which nothing is to be gained.
        step[places] = np.linalg.lstsq(curvature, gradient, rcond=1e-12)[0]
        while (new := loss(x - step)) > current and np.abs(step).max() > _NO_STEP:
            step /= 2
        if np.abs(step).max() <= _NO_STEP:
            break
        x, current = x - step, new
    return float(x[0]), float(x[1])


def _sigmoid_slope(logits: Doubles, targets: Targets) -> Callable[[float], float] | None:
    """d/da of the cross-entropy of sigmoid(a z)."""
    known = targets >= 0
    z, positive = logits[known], targets[known] == 1
    if not len(z):
        return None
    return lambda a: float((z * (sigmoid(a * z) - positive)).mean())


def _softmax_slope(logits: Doubles, targets: Targets) -> Callable[[float], float] | None:
    """d/da of the cross-entropy of softmax(a z): the expected logit minus that of the right label."""
    clear = (targets == 1).sum(axis=1) == 1
    if not clear.any():
        return None
    z = logits[clear] - logits[clear].max(axis=1, keepdims=True)  # the same distribution, without overflow
    right = z[targets[clear] == 1]  # [m]

    def slope(a: float) -> float:
        weight = np.exp(a * z)
        return float(((weight * z).sum(axis=1) / weight.sum(axis=1) - right).mean())

    return slope
