"""`labelwise train`: from images and labels to a model."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Literal

import labelwise as lw
from labelwise.cli.common import FileName, Flag, Settings, described_by, parse_options, say, takes_table
from labelwise.core.errors import LabelwiseError


@takes_table
@described_by("api.training:train")
def train(
    *,
    out: Path | None = None,
    data: FileName | None = None,
    recipe: Path | None = None,
    minutes: float | None = None,
    head: str | None = None,
    backbone: str | None = None,
    weights: str | None = None,
    size: int | None = None,
    freeze: Literal["none", "stem", "stem+norms", "early", "backbone"] | None = None,
    start: str | None = None,
    loss: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    workers: int | None = None,
    on_bad_image: Literal["error", "skip"] | None = None,
    set_: Settings = None,
    resume: Flag = False,
    overwrite: Flag = False,
    runner: Literal["ray"] | None = None,
    address: str | None = None,
    processes: int | None = None,
    dry_run: Flag = False,
    images: int | None = None,
    labels: int | None = None,
    gpu: str | None = None,
    gpus: int | None = None,
) -> None:
    """Train a model. Without a recipe: a query head on a frozen, pretrained backbone, which suits a laptop.

    The defaults below are those of the default recipe; another recipe brings its own.

    Parameters
    ----------
    data
        Images and labels: a path, format:path or format:path?option=value; also tar shards and buckets (*.tar, s3://…).
    freeze
        backbone: train only the head, on features that are computed once and cached. early: also train the last layers
        of the backbone. stem: all but its stem and first stage; stem+norms: not its batch norms either. none: all of
        it. Default: backbone.
    dry_run
        Only print what the training will need: memory on each GPU, steps, FLOPs and, with --gpu, hours.
    images
        For --dry-run without data: the number of training images.
    labels
        For --dry-run without data: the number of labels.
    gpu
        For --dry-run: a100, h100, v100, ...
    gpus
        For --dry-run: how many GPUs share the batch. Default: 1, or as many as torchrun starts.
    """
    given = locals()
    counted = {name: given[name] for name in ("images", "labels", "gpu", "gpus")}
    where = {name: given[name] for name in ("runner", "address", "processes")}
    others = ("data", "out", "recipe", "minutes", "set_", "resume", "overwrite", "dry_run", *where, *counted)
    settings = {name: value for name, value in given.items() if name not in others}
    settings |= parse_options(
        set_ or [], flags=("data", "out", "recipe", "minutes", "resume", "overwrite", *where, *counted)
    )
    if dry_run and minutes is not None:
        raise LabelwiseError(
            "--dry-run counts what a recipe needs; --minutes chooses one by measuring: use one or the other"
        )
    if dry_run:
        say(str(lw.estimate(data, recipe=recipe, **counted, **settings)))
        return
    if asked := next((name for name, value in counted.items() if value is not None), None):
        raise LabelwiseError(f"--{asked} is for an estimate; add --dry-run")
    if out is None:
        raise LabelwiseError("name a folder for the run", options={"out": "runs/first"})
    before = _written(out)
    try:
        where |= {"resume": resume, "overwrite": overwrite}
        lw.train(data, out=out, recipe=recipe, minutes=minutes, **where, **settings)
    except KeyboardInterrupt:
        if resume or _written(out) != before:  # otherwise the folder holds what it held
            say(f"Continue with: labelwise train --out {out} --resume", stderr=True)
        raise
    if os.environ.get("RANK", "0") == "0":  # of torchrun's processes, the first one speaks
        say(f"Evaluate it with: labelwise evaluate {quote(str(out))}", stderr=True)


def _written(run: Path) -> int | None:
    recipe = run / "recipe.yaml"
    return recipe.stat().st_mtime_ns if recipe.exists() else None
