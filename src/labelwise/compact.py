"""A saved model in a fraction of its size, for a package or a small device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from labelwise.backbones import Backbone, BackboneConfig
from labelwise.backbones.weights import in_package


def compacted(backbone: BackboneConfig, state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """The tensors to save instead of a model's own, and whether its backbone is left out.

    Matrices become 16-bit floats; vectors (biases, norms, running statistics) are small and stay exact. A backbone that
    still has the weights of an installed package is left out: whoever loads the model takes them from there.
    """
    installed = package_tensors(backbone) if in_package(backbone.name) else {}
    left_out = bool(installed) and all(torch.equal(tensor, state[name].cpu()) for name, tensor in installed.items())
    return {name: _half(state[name]) for name in state if not (left_out and name in installed)}, left_out


def package_tensors(backbone: BackboneConfig) -> dict[str, Tensor]:
    """A backbone's tensors as an installed package has them, by their names in a model."""
    return {f"backbone.{name}": tensor for name, tensor in Backbone(backbone, "package").state_dict().items()}


def _half(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() and tensor.dim() > 1 else tensor
