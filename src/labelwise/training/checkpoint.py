"""Checkpoints: one safetensors file with the numbers in its header, replaced in one step, so that `kill -9` at any
moment leaves the previous one or the new one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from labelwise.errors import LabelwiseError


def write_checkpoint(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    draft = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(plain, draft, metadata={"state": json.dumps(state)})
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except (OSError, SafetensorError) as error:
        draft.unlink(missing_ok=True)
        raise LabelwiseError(
            f"cannot write the checkpoint {str(path)!r} ({error}); the one before it stands. "
            "Free some space and continue with --resume"
        ) from None


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["state"])  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise LabelwiseError(
            f"the checkpoint {str(path)!r} is damaged ({error}); start again with --overwrite"
        ) from None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as named tensors: rates and decays come from the recipe."""
    state = optimizer.state_dict()["state"]
    return {f"optimizer.{index}.{key}": value for index, values in state.items() for key, value in values.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def module_tensors(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}


def restore_module(prefix: str, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    start = f"{prefix}."
    module.load_state_dict({k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)})
