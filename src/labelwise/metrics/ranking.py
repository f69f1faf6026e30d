"""Average precision, per label and its mean; and the checks of scores and targets that all metrics share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.core.arrays import Doubles, Ints, Scores, Targets, to_numpy
from labelwise.core.errors import LabelwiseError, unknown_name

ArrayLike = Tensor | NDArray[Any] | Sequence[Any]
Method = Literal["area", "interpolated", "11-point"]

# Labels are ranked in blocks: large enough to make one sort call worthwhile, small enough to bound memory.
_BLOCK_VALUES = 2**24


def average_precision(scores: ArrayLike, targets: ArrayLike, method: Method = "area") -> Tensor:
    """AP of every label as fractions [N]; NaN for a label with no known positive.

    Args:
        scores: [M, N], probabilities or logits: only their order within a label counts.
        targets: [M, N] in {1, 0, -1}; unknown entries (-1) are left out.
        method: "area" is the area under the steps of the precision-recall curve (scikit-learn's definition: equal
            scores are one threshold). "interpolated" is the area under the curve's envelope, where precision never
            falls with recall (SSGRL, Query2Label). "11-point" is VOC 2007's: the mean of the best precision at
            recall >= 0, 0.1 ... 1.

    >>> average_precision(torch.tensor([[0.9], [0.8], [0.7], [0.6]]), torch.tensor([[1], [0], [1], [-1]]))
    tensor([0.8333], dtype=torch.float64)
    """
    check_method(method)
    values, known = read_both(scores, targets)  # [M, N]
    precision = [
        average_precision_by_label(np.array(values.T[block], order="C"), np.array(known.T[block], order="C"), method)
        for block in label_blocks(*values.shape)
    ]
    return torch.from_numpy(np.concatenate([np.empty(0), *precision]))


def mean_average_precision(scores: ArrayLike, targets: ArrayLike, method: Method = "area") -> float:
    """The mean AP over the labels that have a known positive, as a fraction; NaN if there is none.

    Args:
        scores: [M, N], probabilities or logits.
        targets: [M, N] in {1, 0, -1}; unknown entries (-1) are left out.
        method: As in `average_precision`, whose NaNs are the labels left out.

    >>> scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> round(mean_average_precision(scores, torch.tensor([[1, 0], [0, 0], [1, 0]])), 4)  # label 1 is left out
    0.8333
    """
    return mean_over_labels(average_precision(scores, targets, method).numpy())


def mean_over_labels(values: Doubles) -> float:
    """Mean of what is defined (not NaN); NaN if nothing is."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def check_method(method: str) -> None:
    if method not in get_args(Method):
        raise unknown_name("average precision method", method, get_args(Method))


def label_blocks(images: int, labels: int) -> Iterator[slice]:
    """Slices of labels whose [n, images] blocks have a bounded size."""
    step = max(1, _BLOCK_VALUES // max(1, images))
    for start in range(0, labels, step):
        yield slice(start, min(start + step, labels))


def average_precision_by_label(scores: Scores, targets: Targets, method: Method) -> Doubles:
    """AP [n] of label-major blocks [n, M]. Overwrites `scores`.

    AP needs two numbers per positive: how many known entries and how many positives score at least as high. One sort
    per label and a binary search per positive give both, exactly and with ties. That is several times less work than
    sorting indices and walking the whole curve.
    """
    positive = targets == 1
    known = (targets >= 0).sum(axis=1)  # [n]
    ends = positive.sum(axis=1).cumsum()  # [n]
    positive_scores = scores[positive]  # label after label
    scores[targets < 0] = np.inf  # sorted behind every known score, so never counted as lower than one
    scores.sort(axis=1)
    summarise = _SUMMARIES[method]
    result = np.full(len(scores), np.nan)
    start = 0
    for label, end in enumerate(ends):
        if end > start:
            found = np.sort(positive_scores[start:end])
            positives_above = len(found) - np.searchsorted(found, found)  # >= this score, itself included
            known_above = known[label] - np.searchsorted(scores[label], found)
            result[label] = summarise(positives_above / known_above, positives_above)
        start = end
    return result


def _area(precision: Doubles, positives_above: Ints) -> float:
    """Every positive is one recall step of 1/P at the precision of its threshold."""
    return float(precision.mean())


def _interpolated(precision: Doubles, positives_above: Ints) -> float:
    """Recall falls along the arrays, so the best precision at this recall or a higher one is a running maximum."""
    return float(np.maximum.accumulate(precision).mean())


def _eleven_points(precision: Doubles, positives_above: Ints) -> float:
    """VOC 2007. Recall falls along the arrays, so `recall >= r` is a prefix; in whole numbers, hence exact."""
    best = np.maximum.accumulate(precision)
    tenths = np.arange(11)[:, None] * len(precision)  # recall >= r/10  <=>  10 * positives_above >= r * P
    reached = (10 * positives_above >= tenths).sum(axis=1)  # [11]
    return float(best[reached - 1].mean())


_SUMMARIES: dict[Method, Callable[[Doubles, Ints], float]] = {
    "area": _area,
    "interpolated": _interpolated,
    "11-point": _eleven_points,
}


def read_scores(scores: ArrayLike) -> Scores:
    """Scores [M, N] as float32 or float64; half precision widens exactly. NaN is refused: it has no rank."""
    array = to_numpy(scores)
    if array.ndim != 2:
        raise LabelwiseError(f"scores must be [images, labels], got shape {_shape(array)}; one label is [images, 1]")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    nan = np.isnan(array)
    if nan.any():
        row, column = np.argwhere(nan)[0]
        raise LabelwiseError(f"score at row {row}, column {column} is NaN ({nan.sum()} in all); fix the model's output")
    return array


def read_targets(targets: ArrayLike, shape: tuple[int, ...]) -> Targets:
    """Targets [M, N] in {1, 0, -1} as int8, of the scores' shape."""
    array = to_numpy(targets)
    if array.shape != shape:
        raise LabelwiseError(f"targets have shape {_shape(array)}, scores {shape}; they must be equal")
    with np.errstate(invalid="ignore"):  # NaN and infinities are reported below, with their position
        small = array.astype(np.int8)
    wrong = small != array  # catches fractions, NaN and values that wrap around in int8
    if small.size and (wrong.any() or small.min() < -1 or small.max() > 1):
        row, column = np.argwhere(wrong | (small < -1) | (small > 1))[0]
        raise LabelwiseError(
            f"target at row {row}, column {column} is {array[row, column]}; use 1 (present), 0 (absent) or -1 (unknown)"
        )
    return small


def read_both(scores: ArrayLike, targets: ArrayLike) -> tuple[Scores, Targets]:
    checked = read_scores(scores)
    return checked, read_targets(targets, checked.shape)


def read_thresholds(thresholds: float | Sequence[float] | ArrayLike, labels: int) -> Doubles:
    """One threshold for all labels or one per label, as [1] or [N]."""
    array = np.atleast_1d(to_numpy(thresholds).astype(np.float64))
    if array.shape not in ((1,), (labels,)):
        raise LabelwiseError(f"thresholds have shape {_shape(array)}; give one number or one per label ({labels})")
    if np.isnan(array).any():
        raise LabelwiseError(f"threshold {int(np.isnan(array).argmax())} is NaN; give a number")
    return array


def read_k(k: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise LabelwiseError(f"k={k!r}: top-k needs a whole number of 1 or more")
    return k


def _shape(array: NDArray[Any]) -> str:
    return str(array.shape)
