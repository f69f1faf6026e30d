"""Every metric reads its input here: tensors or arrays in, checked numpy arrays out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelwise.errors import LabelwiseError

ArrayLike = Tensor | NDArray[Any]
Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Bytes = NDArray[np.int8]
Mask = NDArray[np.bool_]


def read_scores(scores: ArrayLike) -> Floats:
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


def read_targets(targets: ArrayLike, shape: tuple[int, ...]) -> Bytes:
    """Targets [M, N] in {1, 0, -1} as int8, of the scores' shape."""
    array = to_numpy(targets)
    if array.shape != shape:
        raise LabelwiseError(f"targets have shape {_shape(array)}, scores {shape}; they must be equal")
    with np.errstate(invalid="ignore"):  # NaN and infinities are reported below, with their place
        small = array.astype(np.int8)
    wrong = small != array  # catches fractions, NaN and values that wrap around in int8
    if small.size and (wrong.any() or small.min() < -1 or small.max() > 1):
        row, column = np.argwhere(wrong | (small < -1) | (small > 1))[0]
        raise LabelwiseError(
            f"target at row {row}, column {column} is {array[row, column]}; use 1 (present), 0 (absent) or -1 (unknown)"
        )
    return small


def read_both(scores: ArrayLike, targets: ArrayLike) -> tuple[Floats, Bytes]:
    checked = read_scores(scores)
    return checked, read_targets(targets, checked.shape)


def read_thresholds(thresholds: float | Sequence[float] | ArrayLike, labels: int) -> NDArray[np.float64]:
    """One threshold for all labels or one per label, as [1] or [N]."""
    given = thresholds if isinstance(thresholds, Tensor | np.ndarray) else np.asarray(thresholds, dtype=np.float64)
    array = np.atleast_1d(to_numpy(given).astype(np.float64))
    if array.shape not in ((1,), (labels,)):
        raise LabelwiseError(f"thresholds have shape {_shape(array)}; give one number or one per label ({labels})")
    if np.isnan(array).any():
        raise LabelwiseError(f"threshold {int(np.isnan(array).argmax())} is NaN; give a number")
    return array


def read_k(k: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise LabelwiseError(f"k={k!r}: top-k needs a whole number of 1 or more")
    return k


def to_numpy(values: ArrayLike) -> NDArray[Any]:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    # numpy has no bfloat16
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _shape(array: NDArray[Any]) -> str:
    return str(array.shape)
