"""A saved model in a fraction of its size, for a package or a small device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from labelwise.backbones import Backbone
from labelwise.backbones.weights import in_package
from labelwise.model_config import ModelConfig

_BACKBONE = "backbone."


def compacted(config: ModelConfig, state: Mapping[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The config and the tensors to save instead of a model's own.

    Matrices become 16-bit floats; vectors (biases, norms, running statistics) are small and stay exact. A backbone that
    still has the weights of an installed package is left out: whoever loads the model takes them from there.
    """
    kept = dict(state)
    if in_package(config.backbone.name):
        installed = Backbone(config.backbone, "package").state_dict()
        if all(torch.equal(tensor, state[_BACKBONE + name].cpu()) for name, tensor in installed.items()):
            kept = {name: tensor for name, tensor in state.items() if not name.startswith(_BACKBONE)}
            backbone = config.backbone.model_copy(update={"weights": "package"})
            config = config.model_copy(update={"backbone": backbone})
    return config, {name: _half(tensor) for name, tensor in kept.items()}


def _half(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() and tensor.dim() > 1 else tensor
