"""Names for the array types that rooms pass to each other, and tensors as arrays without importing PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
Floats = NDArray[np.float32]  # inputs, logits and maps of networks
Doubles = NDArray[np.float64]  # probabilities, thresholds, metrics
Scores = NDArray[np.floating[Any]]  # float32 or float64: what labels are ranked by
Targets = NDArray[np.int8]  # 1 present, 0 absent, -1 unknown
Ints = NDArray[np.int64]
Columns = NDArray[np.int32]  # of labels
Mask = NDArray[np.bool_]


def to_numpy(values: Any) -> Array:
    """An array from whatever NumPy understands, or from a tensor on any device.

    NumPy has no bfloat16: such tensors become float32, which holds their values exactly.

    Args:
        values: An array, a tensor, or nested lists of numbers.

    >>> to_numpy([[0.5, 1.0]])
    array([[0.5, 1. ]])
    >>> import torch
    >>> to_numpy(torch.ones(2, dtype=torch.bfloat16, requires_grad=True))
    array([1., 1.], dtype=float32)
    """
    if not hasattr(values, "detach"):
        return np.asarray(values)
    values = values.detach().cpu()
    array: Array = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    return array


def row_pointers(lengths: ArrayLike) -> Ints:
    """Where each row begins and where the last one ends, [M+1], in rows that are stored one after the other.

    >>> row_pointers([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64, copy=False)
