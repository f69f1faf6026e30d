"""`labelwise train`: from photos and tags to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from labelwise.cli.common import parse_options


def train(
    *,
    out: Path,
    data: str | None = None,
    recipe: Path | None = None,
    head: str | None = None,
    backbone: str | None = None,
    weights: str | None = None,
    size: int | None = None,
    freeze: Literal["none", "early", "backbone"] | None = None,
    start: str | None = None,
    loss: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    workers: int | None = None,
    on_bad_image: Literal["error", "skip"] | None = None,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    resume: Annotated[bool, Parameter(negative=())] = False,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Train a model. Without a recipe: an HSQ head on a frozen, pretrained backbone, good for a laptop.

    Parameters
    ----------
    out
        Folder of the run: model, recipe, metrics, checkpoints and log go there.
    data
        Photos and labels: a path, format:path or format:path?option=value (docs/reference/data-formats.md).
    recipe
        A YAML file with all settings; flags and --set change single ones.
    head
        Name of the head (labelwise heads).
    backbone
        Name of the timm backbone (labelwise backbones).
    weights
        Of the backbone: auto, hub, package, none or a file.
    size
        Input size in pixels.
    freeze
        backbone: train the head alone, on features that are computed once and cached. early: the head and the last
        layers of the backbone (a ResNet's last two stages). none: all of it.
    start
        A trained model to go on from. A run brings its data, splits, head, backbone and loss along; a model folder or
        a hub id has to fit the other settings. With --freeze early (or none) and a small --lr it is fine-tuned.
    loss
        Name of the loss: asymmetric, bce, focal, two-way, ranking, hill, splc, softmax-cross-entropy.
    epochs
        How often to go through the training images.
    batch_size
        Images in a step, of all processes together.
    lr
        Highest learning rate.
    seed
        Of everything random: the same seed gives the same weights.
    workers
        Processes that load images.
    on_bad_image
        skip: go on without images that cannot be decoded; they are counted.
    set_
        Any other setting of the recipe, dotted: --set optimizer.weight_decay=0.05 --set head.shared_experts=4.
    resume
        Continue the run in --out exactly where it stopped.
    overwrite
        Replace the run in --out.
    """
    from labelwise.core.errors import LabelwiseError
    from labelwise.training import load_recipe
    from labelwise.training.recipe import full_key
    from labelwise.training.train import train as run

    flags: dict[str, Any] = {
        "data.source": data,
        "data.on_bad_image": on_bad_image,
        "model.head": head,
        "model.backbone": backbone,
        "model.weights": weights,
        "model.size": size,
        "model.freeze": freeze,
        "model.start": start,
        "loss.name": loss,
        "optimizer.lr": lr,
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
        "workers": workers,
    }
    changes = {key: value for key, value in flags.items() if value is not None}
    changes |= {full_key(key): value for key, value in parse_options(set_ or []).items()}
    if resume:
        if changes or recipe or overwrite:
            raise LabelwiseError("--resume continues the run as it was: give it --out alone")
        recipe = out / "recipe.yaml"
        if not recipe.exists():
            raise LabelwiseError(f"there is no run in {str(out)!r} to resume; start it without --resume")
    run(load_recipe(recipe, changes), out, resume=resume, overwrite=overwrite)
