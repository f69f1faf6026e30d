"""Checkpoints: one safetensors file with the state in its header, replaced atomically, so that `kill -9` at any moment
leaves the previous one or the new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from labelwise.core.errors import LabelwiseError, one_line
from labelwise.model.tensors import load_tensors, save_tensors
from labelwise.runtime.run_files import CHECKPOINTS


def last_checkpoint(run: Path) -> Path:
    """The checkpoint from which a run resumes."""
    return run / CHECKPOINTS / "last.safetensors"


def write_checkpoint(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    try:
        save_tensors(path, tensors, {"state": json.dumps(state)})
    except (OSError, SafetensorError) as error:
        # Without an earlier one there may be no run to resume: the one that was to be replaced comes back.
        again = {"resume": True} if path.with_name("last.safetensors").exists() else None
        kept = "the previous one is kept. Free space and resume" if again else "free space and start again"
        raise LabelwiseError(f"cannot write the checkpoint {str(path)!r} ({error}); {kept}", options=again) from None


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.exists():
        raise LabelwiseError(f"there is no checkpoint {str(path)!r}")
    try:
        tensors, metadata = load_tensors(path)
        state = json.loads(metadata["state"])
        if not isinstance(state, dict):
            raise ValueError("its state is not a mapping")
        return tensors, state
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: Exception) -> LabelwiseError:
    """For a file that is not what a training has written: a disk, or somebody, has changed it."""
    reason = f"no {error}" if isinstance(error, KeyError) else one_line(error)[:300]
    return LabelwiseError(
        f"the checkpoint {str(path)!r} is damaged ({reason}); start again", options={"overwrite": True}
    )


# torch's own collectors: they give whole tensors by parameter name for plain, DDP and sharded (FSDP) modules alike.
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def module_tensors(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Any] = get_model_state_dict(module, options=_WHOLE)
    return {f"{prefix}.{name}": tensor for name, tensor in state.items()}


def restore_module(prefix: str, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    state: dict[str, Any] = {**named(prefix, tensors)}
    if not state:  # which torch takes for nothing to do
        raise KeyError(prefix)
    set_model_state_dict(module, state, options=_WHOLE)


def optimizer_tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as named tensors; rates and decays come from the recipe. Of several processes, only the
    first one, which writes them, gets any."""
    state: Any = get_optimizer_state_dict(module, optimizer, options=_WHOLE).get("state", {})
    return {f"optimizer.{name}/{key}": value for name, values in state.items() for key, value in values.items()}


def restore_optimizer(module: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = dict(module.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    groups = [{**group, "params": [names[id(p)] for p in group["params"]]} for group in optimizer.param_groups]
    state: dict[str, dict[str, Tensor]] = {}
    for key, tensor in named("optimizer", tensors).items():
        name, _, kind = key.rpartition("/")
        if tensor.dim() and tensor.shape != parameters[name].shape:
            raise ValueError(f"{key!r} is {list(tensor.shape)}, its parameter {list(parameters[name].shape)}")
        state.setdefault(name, {})[kind] = laid_out_like(parameters[name], tensor)
    whole: Any = {"state": state, "param_groups": groups}
    set_optimizer_state_dict(module, optimizer, whole, options=_WHOLE)


def laid_out_like(parameter: Tensor, tensor: Tensor) -> Tensor:
    """Files hold contiguous tensors, but a fused optimizer needs a parameter and its state in the same layout."""
    if parameter.dim() == 4 and tensor.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def named(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one part of a checkpoint, by their names in it."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
