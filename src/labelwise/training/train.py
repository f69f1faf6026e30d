"""One training run: a recipe and a folder in, a model out. The folder holds everything the run was and knows."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import nn

from labelwise import losses
from labelwise.backbones.timm_backbone import put_channels_last
from labelwise.core.errors import LabelwiseError
from labelwise.evaluation.thresholds import fit_config
from labelwise.heads import preset, with_options
from labelwise.model.config import ModelConfig
from labelwise.model.model import LabelModel
from labelwise.training.batches import Batches, Share
from labelwise.training.checkpoint import last_checkpoint
from labelwise.training.display import Display
from labelwise.training.distributed import create_fabric
from labelwise.training.loop import Trainer
from labelwise.training.recipe import Recipe, save_recipe
from labelwise.training.run import RECIPE, Run, run_folder
from labelwise.training.setup import (
    build_model,
    check_start,
    feature_batches,
    fingerprint,
    grouped_labels,
    image_batches,
    open_tables,
    take_weights,
)


def train(recipe: Recipe, folder: str | Path, *, resume: bool = False, overwrite: bool = False) -> Run:
    """Train a model by a recipe.

    Args:
        recipe: Everything that decides the training (`load_recipe`).
        folder: Where the run is written: model, recipe, metrics, checkpoints and log.
        resume: Continue the run in `folder` exactly where it stopped.
        overwrite: Replace the run in `folder`; it is kept until the new one has begun.

    Returns:
        The finished run; `run.model()` is the model.

    Example:
        >>> run = train(load_recipe(None, {"data.source": "photos.csv"}), "runs/first")  # doctest: +SKIP
        >>> run.evaluate(split="test")  # doctest: +SKIP
    """
    folder = Path(folder)
    check(recipe)
    if recipe.model.start is not None and not resume:
        check_start(recipe.model.start, folder)
    fabric = create_fabric(recipe)
    with run_folder(folder, resume, overwrite) if fabric.is_global_zero else nullcontext():
        fabric.barrier()
        display = Display(folder / "log.txt" if fabric.is_global_zero else None)
        try:
            _train(recipe, folder, fabric, display, resume)
            return Run(folder)
        except KeyboardInterrupt:
            display.close()
            started = (folder / RECIPE).exists()
            resumed = f"Continue with: labelwise train --out {folder} --resume"
            display.say(f"stopped; nothing is lost. {resumed if started else 'Give the same command again.'}")
            raise
        finally:
            display.close()


def check(recipe: Recipe) -> None:
    """Mistakes in the recipe, before any photo is read."""
    model = recipe.model
    head = with_options(preset(model.head), model.options, f"head {model.head!r}")
    if head.takes_words and model.words is None:
        raise LabelwiseError(
            "this head needs word vectors: --set model.words=package:glove-50d or FILE (docs/guides/zero-shot.md)"
        )
    softmax = model.task == "single-label" or recipe.loss.name == "softmax-cross-entropy"
    if softmax and model.options.get("random_queries"):
        raise LabelwiseError("random_queries need independent labels: set random_queries=0, or task=multi-label")
    if losses.create(recipe.loss.name, **recipe.loss.options).options["reduction"] == "none":
        raise LabelwiseError("loss.options.reduction=none gives no number to minimise; use mean, batch or sum")
    if recipe.pair_mix and not recipe.can_mix_pairs:
        raise LabelwiseError(
            "pair_mix joins the maps of two images into a scene with the labels of both, which are too many for "
            "task=single-label; set pair_mix=0"
        )
    if recipe.ema and recipe.strategy == "fsdp":
        raise LabelwiseError("averaged weights (ema) cannot be sharded: use --set ema=0, or --set strategy=ddp")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if recipe.batch_size % processes:
        raise LabelwiseError(f"batch_size={recipe.batch_size} cannot be shared evenly by {processes} processes")


def _train(recipe: Recipe, folder: Path, fabric: Fabric, display: Display, resume: bool) -> None:
    split_file = folder / "split.csv" if fabric.is_global_zero and not resume else None
    train_table, held_out = open_tables(recipe, display, split_file=split_file, run=folder if resume else None)
    for table in (train_table, held_out):
        if table is not None and len(table) < fabric.world_size:
            raise LabelwiseError(
                f"{len(table)} images of {table.source} cannot be shared by {fabric.world_size} processes; use fewer"
            )
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, train_table.labels, grouped_labels(recipe, train_table))
    frozen = recipe.model.freeze == "backbone"
    # A checkpoint of the whole model holds all that the start gave it; of a frozen one, the head alone.
    if recipe.model.start is not None and (frozen or not (resume and last_checkpoint(folder).exists())):
        take_weights(model, recipe.model.start)
    if frozen:
        model.backbone.requires_grad_(False).eval().to(fabric.device)
    elif recipe.model.freeze == "early":
        model.backbone.freeze_early()
    if not frozen and recipe.strategy != "fsdp":  # which takes plain weights only
        put_channels_last(model.backbone)
    module: nn.Module = model.head if frozen else model
    display.say(
        f"{len(train_table)} images to train on, {len(held_out) if held_out is not None else 'none'} to validate, "
        f"{len(train_table.labels)} labels; {recipe.model.head} on {recipe.model.backbone}, "
        f"{sum(p.numel() for p in module.parameters() if p.requires_grad) / 1e6:.2f} M parameters to learn"
    )
    make = feature_batches if frozen else image_batches
    batches = make(recipe, model, train_table, held_out, fabric)
    data = fingerprint(train_table, held_out)
    trainer = Trainer(module, batches, len(train_table.labels), recipe, folder, fabric, display, data)
    if fabric.is_global_zero:
        save_recipe(recipe, folder / RECIPE)  # from here on the folder holds a run; before, only a mistake
    trained = trainer.run(resume)
    display.close()
    if not trained and (folder / "model").exists():  # as it is: its thresholds may have been fitted anew since
        display.say(f"{folder} is finished already")
        return
    model = with_best_weights(model, trainer, frozen)
    if fabric.is_global_zero:
        model.config = finished_config(model, trainer, recipe, batches)
        model.save(folder / "model")
        display.say(f"saved {folder / 'model'}; evaluate it with: labelwise evaluate {folder} --data … --split test")
    fabric.barrier()


def with_best_weights(model: LabelModel, trainer: Trainer, frozen: bool) -> LabelModel:
    """A model in one piece and in evaluation mode: the trained one may be spread over processes."""
    whole = LabelModel(model.config, backbone=model.backbone if frozen else None)
    (whole.head if frozen else whole).load_state_dict(trainer.best_weights())
    return whole.to(trainer.fabric.device).eval()


@torch.no_grad()
def finished_config(model: LabelModel, trainer: Trainer, recipe: Recipe, batches: Batches) -> ModelConfig:
    """What the model needs to be used: how good it is, and temperature and thresholds fitted on the validation data."""
    progress = trainer.progress
    best = progress.history[progress.best_epoch - 1] if progress.best_epoch else {}
    results: dict[str, object] = {
        "data": recipe.data.source,
        "split": recipe.data.validation,
        **{key: best[key] for key in ("epoch", "accuracy_top1", "accuracy_top5", "mAP", "CF1", "OF1") if key in best},
        "skipped_images": len(batches.bad_images),
    }
    config = model.config.model_copy(update={"results": results})
    if recipe.data.validation is None or recipe.thresholds == "none":
        return config
    module = model.head if recipe.model.freeze == "backbone" else model
    device = trainer.fabric.device
    logits, targets = zip(*((module(x.to(device)).cpu(), t) for x, t in batches.validation(Share())), strict=True)
    rule = recipe.thresholds if recipe.model.task == "multi-label" else None
    everything = torch.cat(logits).numpy(), torch.cat(targets).numpy()
    return fit_config(config, *everything, thresholds=rule, temperature=True).config
