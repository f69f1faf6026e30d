"""`labelwise train`: from images and labels to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import labelwise as lw
from labelwise.cli.common import Flag, Settings, parse_options, say


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
    workers: Annotated[int | None, Parameter(help="Processes that decode images.")] = None,
    on_bad_image: Literal["error", "skip"] | None = None,
    set_: Settings = None,
    resume: Flag = False,
    overwrite: Flag = False,
) -> None:
    """Train a model. Without a recipe: an HSQ head on a frozen, pretrained backbone, which suits a laptop.

    Parameters
    ----------
    out
        Folder of the run: model, recipe, metrics, checkpoints and log.
    data
        Images and labels: a path (its format is recognised), format:path or format:path?option=value.
    recipe
        A YAML file with all settings; flags and --set change single ones.
    head
        Name of the head (labelwise heads).
    backbone
        Name of the timm backbone (labelwise backbones).
    weights
        Weights of the backbone: auto, hub, package, none or a file.
    size
        Input size in pixels.
    freeze
        backbone: train only the head, on features that are computed once and cached. early: also train the last layers
        of the backbone (a ResNet's last two stages). none: also train the whole backbone.
    start
        A trained model to continue from. A run also brings its data, splits, head, backbone and loss; a model folder or
        a hub id has to fit the other settings. To fine-tune, add --freeze early (or none) and a small --lr.
    loss
        Name of the loss: asymmetric, bce, focal, two-way, ranking, hill, splc, softmax-cross-entropy.
    epochs
        Passes over the training images.
    batch_size
        Images per step, of all processes together.
    lr
        Highest learning rate.
    seed
        Seed of everything random; the same seed gives the same weights.
    on_bad_image
        skip: leave out images that cannot be decoded, and count them.
    resume
        Continue the run in --out exactly where it stopped.
    overwrite
        Replace the run in --out.
    """
    given: dict[str, Any] = {
        "head": head,
        "backbone": backbone,
        "weights": weights,
        "size": size,
        "freeze": freeze,
        "start": start,
        "loss": loss,
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": lr,
        "seed": seed,
        "workers": workers,
        "on_bad_image": on_bad_image,
    }
    settings = given | parse_options(set_ or [], flags=("data", "out", "recipe", "resume", "overwrite"))
    try:
        lw.train(data, out=out, recipe=recipe, resume=resume, overwrite=overwrite, **settings)
    except KeyboardInterrupt:
        if (out / "recipe.yaml").exists():
            say(f"Continue with: labelwise train --out {out} --resume", stderr=True)
        raise
    say(f"Evaluate it with: labelwise evaluate {out} --data … --split test", stderr=True)
