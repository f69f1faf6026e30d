"""Checkpoints: one safetensors file with the state in its header, replaced atomically, so that `kill -9` at any moment
leaves the previous one or the new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write
from labelwise.runtime.run_files import CHECKPOINTS


def last_checkpoint(run: Path) -> Path:
    """The checkpoint from which a run resumes."""
    return run / CHECKPOINTS / "last.safetensors"


def write_checkpoint(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        atomic_write(path, lambda draft: save_file(plain, draft, metadata={"state": json.dumps(state)}))
    except (OSError, SafetensorError) as error:
        # Without an earlier one there may be no run to resume: the one that was to be replaced comes back.
        again = {"resume": True} if path.with_name("last.safetensors").exists() else None
        kept = "the previous one is kept. Free space and resume" if again else "free space and start again"
        raise LabelwiseError(f"cannot write the checkpoint {str(path)!r} ({error}); {kept}", options=again) from None


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.exists():
        raise LabelwiseError(f"there is no checkpoint {str(path)!r}")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["state"])  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise LabelwiseError(
            f"the checkpoint {str(path)!r} is damaged ({error}); start again", options={"overwrite": True}
        ) from None


# torch's own collectors: they give whole tensors by parameter name for plain, DDP and sharded (FSDP) modules alike.
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def module_tensors(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Any] = get_model_state_dict(module, options=_WHOLE)
    return {f"{prefix}.{name}": tensor for name, tensor in state.items()}


def restore_module(prefix: str, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    state: dict[str, Any] = {**named(prefix, tensors)}
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
