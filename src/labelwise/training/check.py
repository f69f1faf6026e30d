"""Checks that reject a recipe before any image is read. No PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from labelwise.core.errors import LabelwiseError
from labelwise.heads.registry import preset, with_options
from labelwise.losses import check_loss
from labelwise.training.recipe import ModelRecipe, Recipe
from labelwise.words.config import tower_words

_OPTIONS = "model.options"
OPTION = f"{_OPTIONS}."  # of a head: how its key begins


def check(recipe: Recipe, processes: int | None = None) -> None:
    """Raise an error for what cannot be trained, before any image is read and before PyTorch is loaded.

    `processes`: how many share a batch; default: those of torchrun.
    """
    model = recipe.model
    head = with_options(preset(model.head), model.options, f"head {model.head!r}")
    if head.takes_words and model.words is None and tower_words(model.backbone) is None:
        raise LabelwiseError(
            "this head needs word vectors of the labels, from a package or a file",
            options={"model.words": "package:glove-50d"},
        )
    if head.trains_text:
        _check_prompts(recipe)
    softmax = model.task == "single-label" or recipe.loss.name == "softmax-cross-entropy"
    if softmax and model.options.get("random_queries"):
        raise LabelwiseError(
            "random_queries need independent labels; use none, or train a multi-label model with another loss",
            options={"head.random_queries": 0},
        )
    check_loss(recipe.loss.name)
    if recipe.loss.options.get("reduction") == "none":
        raise LabelwiseError(
            "loss.options.reduction=none gives no number to minimise; use mean, batch or sum",
            options={"loss.options.reduction": "mean"},
        )
    if head.takes_known and (recipe.loss.options.get("unknown") == "negative" or recipe.loss.has("uses_unknown")):
        raise LabelwiseError(
            "this head hides the labels that it is told from the loss, which takes them for unknown and learns from "
            "that; use another loss",
            options={"loss": "asymmetric"},
        )
    processes = processes or int(os.environ.get("WORLD_SIZE", "1"))
    _check_memory(recipe, processes)
    if recipe.pair_mix and recipe.model.task == "single-label":
        raise LabelwiseError(
            "pair_mix joins two images into one with the labels of both, too many for a single-label model",
            options={"pair_mix": 0},
        )
    check_batch(recipe, processes)


def check_batch(recipe: Recipe, processes: int) -> None:
    if recipe.batch_size % processes:
        raise LabelwiseError(f"batch_size={recipe.batch_size} cannot be divided evenly among {processes} processes")


def check_options(recipe: Recipe, changes: Mapping[str, Any]) -> None:
    """Raise an error for an option of the head among `changes` that does nothing, e.g. experts' in a head without."""
    given = {key.removeprefix(OPTION): value for key, value in changes.items() if key.startswith(OPTION)}
    for name, reason in useless_options(recipe.model, changes.get(_OPTIONS, {}) | given).items():
        head = preset(recipe.model.head)
        of_experts = head.option_parts()[head.renamed_options().get(name, name)] == "experts"
        hint = f"{reason}; leave it out" + ", or add experts" * of_experts
        raise LabelwiseError(hint, options={"head.experts": "hybrid"} if of_experts else {})


def useless_options(model: ModelRecipe, options: Mapping[str, Any]) -> dict[str, str]:
    """Those of `options` that the head does not have, or does not use when it has all of them; each with the reason."""
    head = preset(model.head)
    parts, old_names = head.option_parts(), head.renamed_options()
    known = {name: value for name, value in options.items() if old_names.get(name, name) in parts}
    unused = with_options(head, model.options | known, f"head {model.head!r}").unused_options
    reasons = {name: f"the head {model.head!r} has no option {name!r}" for name in options if name not in known}
    for name in known:
        if (today := old_names.get(name, name)) in unused:
            reasons[name] = f"{today!r} has no effect on the head {model.head!r}"
    return reasons


def _check_prompts(recipe: Recipe) -> None:
    """Trained prompts need a text tower, and each process all of its text embeddings."""
    words = recipe.model.words or tower_words(recipe.model.backbone)
    if words is None or not words.source.startswith("clip:"):
        raise LabelwiseError(
            "these prompts are trained through the text tower of CLIP or SigLIP",
            options={"model.words": "clip:ViT-B-32/openai"},
        )
    if recipe.strategy == "fsdp":
        raise LabelwiseError("trained prompts cannot be sharded; use another strategy", options={"strategy": "ddp"})


def _check_memory(recipe: Recipe, processes: int) -> None:
    """A loss that remembers something of each image needs whole images with the same labels, and all of them."""
    mixed: dict[str, Any] = {name: 0 for name in ("mixup", "cutmix", "pair_mix") if getattr(recipe, name)}
    if recipe.model.options.get("random_queries"):
        mixed["head.random_queries"] = 0
    if not (mixed or processes > 1) or not recipe.loss.has("remembers"):
        return
    because = f"the loss {recipe.loss.name!r} remembers something of each image, so"
    if mixed:
        raise LabelwiseError(f"{because} neither images nor their labels can be mixed", options=mixed)
    raise LabelwiseError(f"{because} it trains in one process, not in {processes}")
