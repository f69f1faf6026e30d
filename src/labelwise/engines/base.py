"""The smallest thing that runs a network, and what all engines share."""

from __future__ import annotations

import os
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import LabelwiseError

Floats = NDArray[np.float32]
Family = Literal["torch", "onnxruntime", "openvino"]
EngineName = Literal["auto", "torch", "onnxruntime", "openvino"]
FAMILIES: tuple[Family, ...] = get_args(Family)

# Engines sum in other orders: their outputs may differ by this much of the largest one (and of 1, if that is more).
TOLERANCE = 1e-4


class Engine(Protocol):
    """images [B, 3, H, W] -> logits [B, N] or maps [B, C, h, w], all float32."""

    @property
    def family(self) -> Family: ...

    def __call__(self, images: Floats) -> Floats: ...


def relative_difference(found: Floats, expected: Floats) -> float:
    """The largest difference, as a share of the largest expected value (of 1, if that is more); infinite if one is NaN.

    >>> round(relative_difference(np.float32([[0.5, 4.0]]), np.float32([[0.5, 4.2]])), 4)
    0.0476
    """
    if found.shape != expected.shape:
        raise LabelwiseError(f"the engine gives {list(found.shape)} where the model gives {list(expected.shape)}")
    worst = float(np.abs(found - expected).max() / max(1.0, float(np.abs(expected).max())))
    return worst if np.isfinite(worst) else float("inf")


def thread_count() -> int:
    """As many threads as this process may use cores; OMP_NUM_THREADS says otherwise, as it does to PyTorch."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
