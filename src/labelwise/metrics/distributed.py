"""Exchanges between the processes of a torch.distributed run. Every process must make the same calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from labelwise.metrics.inputs import Bytes, Floats, Ints


def process_count() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_rank() -> int:
    return dist.get_rank() if process_count() > 1 else 0


def sum_over_processes(array: NDArray[Any]) -> NDArray[Any]:
    return _reduce(array, dist.ReduceOp.SUM)


def max_over_processes(array: Ints) -> Ints:
    return _reduce(array, dist.ReduceOp.MAX)


def gather_images(scores: Floats, targets: Bytes, rows: int, to: int) -> tuple[Floats, Bytes] | None:
    """Every process's [n, M] blocks side by side, on process `to` (`None` elsewhere).

    Processes may hold different numbers of images: each pads to `rows` with unknown entries, which count nowhere.
    """
    missing = ((0, 0), (0, rows - scores.shape[1]))
    all_scores = _gather(np.pad(scores, missing), to)
    all_targets = _gather(np.pad(targets, missing, constant_values=-1), to)
    if not all_scores:
        return None
    return np.concatenate(all_scores, axis=1), np.concatenate(all_targets, axis=1)


def _gather(array: NDArray[Any], to: int) -> list[NDArray[Any]]:
    sent = _to_device(array)
    received = [torch.empty_like(sent) for _ in range(process_count())] if process_rank() == to else None
    dist.gather(sent, received, dst=to)
    return [piece.cpu().numpy() for piece in received or []]


def _reduce(array: NDArray[Any], operation: dist.ReduceOp.RedOpType) -> NDArray[Any]:
    total = _to_device(array.copy())
    dist.all_reduce(total, operation)
    return total.cpu().numpy()


def _to_device(array: NDArray[Any]) -> Tensor:
    """NCCL exchanges only what is on its GPU."""
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
