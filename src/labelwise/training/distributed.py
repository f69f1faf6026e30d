"""Processes: Lightning Fabric under torchrun, sharding with FSDP, lost processes, and stopping on a signal."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from types import FrameType, TracebackType
from typing import Any, Literal, Self, TypeVar

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from labelwise.core.errors import LabelwiseError, one_line
from labelwise.model.model import LabelModel
from labelwise.training.recipe import Recipe

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
T = TypeVar("T")


def precision_here(recipe: Recipe) -> Precision:
    """The recipe's precision; for `auto`, bfloat16 where this machine computes with it."""
    if recipe.precision != "auto":
        return recipe.precision
    if torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = any(torch.cpu.get_capabilities().get(name) for name in ("avx512_bf16", "amx_bf16"))
    return "bf16-mixed" if native else "32-true"


def create_fabric(recipe: Recipe) -> Fabric:
    """Fabric for one process or, under torchrun, for all processes on all machines."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    machines = int(os.environ.get("WORLD_SIZE", "1")) // local
    strategy: Any = recipe.strategy
    if strategy == "auto" and local * machines > 1:
        strategy = "ddp"
    timeout = timedelta(minutes=recipe.timeout_minutes)
    if strategy == "ddp":  # bucket views: else it keeps a second copy of all gradients
        strategy = DDPStrategy(gradient_as_bucket_view=True, timeout=timeout)
    if strategy == "fsdp":
        strategy = ModelParallelStrategy(
            shard, data_parallel_size=local * machines, tensor_parallel_size=1, timeout=timeout
        )
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it prints the precision that the recipe names
    fabric = Fabric(devices=local, num_nodes=machines, strategy=strategy, precision=precision_here(recipe))
    fabric.launch()
    return fabric


def shard(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """FSDP: each process keeps its part of the weights, gradients and optimizer state, and gathers them to compute."""
    if isinstance(module, LabelModel):
        fully_shard(module.backbone, mesh=mesh["data_parallel"])
    fully_shard(module, mesh=mesh["data_parallel"])
    return module


def gathered(fabric: Fabric, items: list[T]) -> list[T]:
    """The items of all processes, in the order of their ranks, on the first process; an empty list on the others."""
    if fabric.world_size == 1:
        return items
    found: list[Any] = [None] * fabric.world_size if fabric.is_global_zero else []
    dist.gather_object(items, found or None)
    return list(chain.from_iterable(found))


@contextmanager
def mistake_of_all(fabric: Fabric) -> Iterator[None]:
    """Around what the first process does alone: the others wait for it, and end with its error if there is one."""
    error: Exception | None = None
    try:
        yield
    except (LabelwiseError, OSError) as mistake:
        error = mistake
    error = fabric.broadcast(error)
    if error is not None:
        raise error


@contextmanager
def lost_process_told() -> Iterator[None]:
    """A process that waits for one that is gone ends with one line; whoever started it can start the group again."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "/gloo/" not in str(error):  # gloo's errors have no class
            raise
        reason = re.sub(r"^\[\S+\] ", "", one_line(error))[:200]  # without the line of gloo's source
        raise LabelwiseError(
            f"a process of this training does not answer ({reason}). The last checkpoint is kept: run the same command "
            "again, or let torchrun do it (--max-restarts)"
        ) from error


class StopRequest:
    """Remembers SIGINT and SIGTERM, so that the loop stops after a checkpoint; a second signal stops it at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python delivers signals nowhere else
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
