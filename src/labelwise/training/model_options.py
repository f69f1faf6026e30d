"""What a recipe changes in the backbone that it trains: frozen layers, gradient checkpointing, synchronised norms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

from lightning_fabric import Fabric
from timm.layers import convert_sync_batchnorm
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from labelwise.backbones import Backbone
from labelwise.core.errors import LabelwiseError
from labelwise.training.recipe import Recipe


def apply_options(backbone: Backbone, recipe: Recipe, fabric: Fabric | None = None) -> None:
    """Prepare a backbone for training; without `fabric`, only to count what that costs."""
    if recipe.sync_batch_norm and fabric is not None:
        synchronise_norms(backbone, fabric)  # first: it replaces layers, which `freeze_early` remembers
    if recipe.model.freeze == "early":
        backbone.freeze_early()
    elif recipe.model.freeze == "stem":
        backbone.freeze_stem()
    elif recipe.model.freeze == "stem+norms":
        backbone.freeze_stem_and_norms()
    if recipe.grad_checkpointing:
        checkpoint_gradients(backbone)


def checkpoint_gradients(backbone: Backbone) -> None:
    """Keep only what enters each block of the backbone; the rest is computed again in the backward pass (timm)."""
    try:
        backbone.model.set_grad_checkpointing(True)
    except (AttributeError, AssertionError):  # some families have no such method, others refuse
        raise LabelwiseError(
            f"timm has no gradient checkpointing for backbone {backbone.config.name!r}; accumulate small batches",
            options={"grad_checkpointing": False, "accumulate": 2},
        ) from None


@contextmanager
def fixed_statistics(module: nn.Module) -> Iterator[None]:
    """Batch norms that are computed again for the same images must not count them twice in their running statistics."""
    norms = [norm for norm in module.modules() if isinstance(norm, _BatchNorm)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, (_, count) in zip(norms, before, strict=True):
        norm.momentum, norm.num_batches_tracked = 0.0, deepcopy(count)  # a synchronised norm insists on a counter
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count


def synchronise_norms(module: nn.Module, fabric: Fabric) -> None:
    """Batch norms use the statistics of all processes' images. With one process there is nothing to do."""
    if fabric.world_size == 1:
        return
    if fabric.device.type == "cpu":
        raise LabelwiseError(
            "PyTorch synchronises batch norms only among GPUs; leave it off", options={"sync_batch_norm": False}
        )
    convert_sync_batchnorm(module)
