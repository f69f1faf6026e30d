"""Train a model by a recipe; the run folder holds everything."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from labelwise import losses
from labelwise.backbones.timm_backbone import put_channels_last
from labelwise.core.errors import LabelwiseError, counted, shortened
from labelwise.data.stream_table import AnyTable
from labelwise.evaluation.thresholds import fit_config
from labelwise.model.config import ModelConfig
from labelwise.model.model import LabelModel
from labelwise.model.tensors import save_tensors
from labelwise.model.towers import attach_text_tower, text_tower
from labelwise.runtime.run_files import HELD_OUT, LOG, MODEL, RECIPE, REFIT, SPLITS
from labelwise.training.batches import Batches, Share
from labelwise.training.check import check
from labelwise.training.checkpoint import damaged, last_checkpoint
from labelwise.training.display import Display
from labelwise.training.distributed import create_fabric, gathered, lost_process_told, mistake_of_all
from labelwise.training.loop import Trainer
from labelwise.training.model_options import apply_options
from labelwise.training.recipe import Recipe, save_recipe
from labelwise.training.run import Run, images_key, run_folder
from labelwise.training.setup import build_model, feature_batches, image_batches, take_weights
from labelwise.training.tables import check_start, data_fingerprint, open_source, open_tables, splits_to_refit


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    source: AnyTable | None = None,
    deadline: float | None = None,
) -> Run:
    """Train a model by a recipe.

    Args:
        recipe: Everything that decides the training (`load_recipe`).
        folder: Where the run is written: model, recipe, metrics, checkpoints and log.
        resume: Continue the run in `folder` exactly where it stopped.
        overwrite: Replace the run in `folder`; it is kept until the new one has a checkpoint.
        source: What `open_source` gives for the recipe, if it was called already.
        deadline: On the clock of `time.monotonic`: what would end later, `refit`, is left out.

    Returns:
        The finished run; `run.model()` is the model.

    Example:
        >>> run = train(load_recipe(None, {"data.source": "photos.csv"}), "runs/first")  # doctest: +SKIP
        >>> run.history.to_pandas()  # doctest: +SKIP
    """
    folder = Path(folder)
    check(recipe)
    losses.create(recipe.loss.name, **recipe.loss.options)  # an error for a wrong option
    if recipe.model.start is not None and not resume:
        check_start(recipe.model.start, folder)
    source = open_source(recipe) if source is None else source
    with ExitStack() as stack:
        stack.enter_context(lost_process_told())
        fabric = create_fabric(recipe)
        with mistake_of_all(fabric):
            if fabric.is_global_zero:
                # A host that was cut off may hold the lock: its processes end when they have waited as long as ours.
                patience = 30 * recipe.timeout_minutes if torch.distributed.is_torchelastic_launched() else 1.0
                stack.enter_context(run_folder(folder, resume, overwrite, patience))
        display = Display(folder / LOG if fabric.is_global_zero else None)
        try:
            _train(recipe, folder, source, fabric, display, resume, deadline)
            return Run(folder)
        except KeyboardInterrupt:
            display.close()
            begun = last_checkpoint(folder).exists()
            display.say("stopped; nothing is lost" if begun else "stopped before the first checkpoint")
            raise
        finally:
            display.close()


def _train(
    recipe: Recipe,
    folder: Path,
    source: AnyTable,
    fabric: Fabric,
    display: Display,
    resume: bool,
    deadline: float | None,
) -> None:
    split_file = folder / SPLITS if fabric.is_global_zero and not resume else None
    train_table, held_out = open_tables(
        recipe, display, source=source, split_file=split_file, run=folder if resume else None
    )
    for table in (train_table, held_out):
        if table is not None and len(table) < fabric.world_size:
            raise LabelwiseError(
                f"{table.source}: {counted(len(table), 'image')} for {fabric.world_size} processes; use fewer of them"
            )
    torch.manual_seed(recipe.seed)
    model = build_model(recipe, train_table.labels, train_table)
    frozen = recipe.model.freeze == "backbone"
    # Without a frozen backbone, the checkpoint of a resumed run holds the whole model, so the start is not needed.
    if recipe.model.start is not None and (frozen or not (resume and last_checkpoint(folder).exists())):
        take_weights(model, recipe.model.start)
    module = trained_part(model, recipe, fabric)
    display.say(
        f"{counted(len(train_table), 'training image')}, "
        f"{counted(len(held_out), 'validation image') if held_out is not None else 'no validation images'}, "
        f"{counted(len(train_table.labels), 'label')}; {recipe.model.head} on {recipe.model.backbone}, "
        f"{sum(p.numel() for p in module.parameters() if p.requires_grad) / 1e6:.2f} M trainable parameters"
        + (f", {fabric.world_size} processes" if fabric.world_size > 1 else "")
    )
    make = feature_batches if frozen else image_batches
    batches = make(recipe, model, train_table, held_out, fabric)
    long_enough = recipe.with_enough_epochs(math.ceil(len(batches) / recipe.accumulate))
    data = data_fingerprint(train_table, held_out)
    trainer = Trainer(module, batches, len(train_table.labels), long_enough, folder, fabric, display, data)
    if fabric.is_global_zero:
        save_recipe(recipe, folder / RECIPE)  # from here on the folder holds a run
    trained = trainer.run(resume)
    display.close()
    if not trained and (folder / MODEL).exists():  # left alone: its thresholds may have been fitted again since
        display.say(f"{folder} is already finished")
        return
    model = with_best_weights(model, trainer, frozen)
    # A loss that remembers images, or changes over the epochs, would begin anew.
    splits = splits_to_refit(recipe.data, source) if recipe.refit and trainer.loss.is_steady else None
    if splits and deadline is not None and _refit_ends(long_enough, trainer, train_table, held_out) > deadline:
        display.say("skipping the refit on validation images: no time left")
        splits = None
        save_recipe(recipe.model_copy(update={"refit": 0.0}), folder / RECIPE)  # what was trained, also for --resume
    outputs = gathered(fabric, held_out_outputs(model.head if frozen else model, recipe, batches, fabric))
    skipped = {(bad.row, bad.path) for bad in gathered(fabric, batches.bad_images)}
    if skipped:
        display.say(f"left out {counted(len(skipped), 'image')} that cannot be decoded, e.g. {min(skipped)[1]}")
    if fabric.is_global_zero:
        model.config, unsure = finished_config(model, trainer, recipe, outputs, len(skipped))
        if splits and outputs and held_out is not None:
            logits, targets = (torch.cat(parts) for parts in zip(*outputs, strict=True))
            about = {"images": images_key(held_out)}
            save_tensors(folder / REFIT / HELD_OUT, {"logits": logits, "targets": targets}, about)
        if unsure:
            display.say(
                f"too few validation images to judge {counted(len(unsure), 'label')} ({shortened(unsure)}): add photos "
                "of them, or check what is predicted for them"
            )
    if splits:
        del trainer, module, batches  # their memory; the best weights have been read
        model = refit(model, long_enough.refitting(splits), folder, source, fabric, display, resume)
    if fabric.is_global_zero:
        model.save(folder / MODEL)
        display.say(f"saved {folder / MODEL}")
    fabric.barrier()


def _refit_ends(recipe: Recipe, trainer: Trainer, *tables: AnyTable | None) -> float:
    """When it would, at the speed of the last epoch."""
    images = recipe.refitting("").epochs * sum(len(table) for table in tables if table is not None)
    return time.monotonic() + images / float(trainer.progress.history[-1]["images_per_second"])


def trained_part(model: LabelModel, recipe: Recipe, fabric: Fabric) -> nn.Module:
    """What a recipe trains of a model: the head if the backbone is frozen, else all of it."""
    attach_text_tower(model.head, text_tower(model.head.config, model.config.words, model.labels))
    if recipe.model.freeze == "backbone":
        model.backbone.requires_grad_(False).eval().to(fabric.device)
        return model.head
    apply_options(model.backbone, recipe, fabric)
    if recipe.strategy != "fsdp":  # which takes only contiguous weights
        put_channels_last(model.backbone)
    return model


def refit(
    model: LabelModel,
    recipe: Recipe,
    folder: Path,
    source: AnyTable,
    fabric: Fabric,
    display: Display,
    resume: bool,
) -> LabelModel:
    """Go on from the best weights with the validation images among the training images: a training of its own, with its
    own checkpoints."""
    table, _ = open_tables(recipe, display, source=source, run=folder)
    frozen = recipe.model.freeze == "backbone"
    module = trained_part(model, recipe, fabric)
    batches = (feature_batches if frozen else image_batches)(recipe, model, table, None, fabric)
    display.say("refit: from the best weights, on training and validation images together")
    data = data_fingerprint(table)
    trainer = Trainer(module, batches, len(table.labels), recipe, folder / REFIT, fabric, display, data)
    trainer.run(resume)
    display.close()
    return with_best_weights(model, trainer, frozen)


def with_best_weights(model: LabelModel, trainer: Trainer, frozen: bool) -> LabelModel:
    """A whole model with the best weights, in evaluation mode; the trained one may be sharded over processes."""
    whole = LabelModel(model.config, backbone=model.backbone if frozen else None)
    try:
        (whole.head if frozen else whole).load_state_dict(trainer.best_weights())
    except RuntimeError as error:
        raise damaged(trainer.best, error) from error
    return whole.to(trainer.fabric.device).eval()


@torch.no_grad()
def held_out_outputs(
    module: nn.Module, recipe: Recipe, batches: Batches, fabric: Fabric
) -> list[tuple[Tensor, Tensor]]:
    """Logits and targets [B, N] of this process's share of the validation images, if thresholds are to be fitted."""
    if recipe.data.validation is None or recipe.thresholds == "none":
        return []
    share = batches.validation(Share(fabric.global_rank, fabric.world_size))
    return [(module(inputs.to(fabric.device)).cpu(), targets) for inputs, targets in share]


def finished_config(
    model: LabelModel,
    trainer: Trainer,
    recipe: Recipe,
    outputs: list[tuple[Tensor, Tensor]],
    skipped_images: int,
) -> tuple[ModelConfig, tuple[str, ...]]:
    """The model's config with its validation metrics, and the temperature and thresholds fitted on validation data; and
    the labels that this data cannot judge. `outputs`: of `held_out_outputs`, from all processes."""
    progress = trainer.progress
    best = progress.history[progress.best_epoch - 1] if progress.best_epoch else {}
    results: dict[str, object] = {
        "data": recipe.data.source,
        "split": recipe.data.validation,
        **{key: best[key] for key in ("epoch", "accuracy_top1", "accuracy_top5", "mAP", "CF1", "OF1") if key in best},
        "skipped_images": skipped_images,
    }
    config = model.config.model_copy(update={"results": results})
    if not outputs:
        return config, ()
    logits, targets = (torch.cat(parts).numpy() for parts in zip(*outputs, strict=True))
    rule = recipe.thresholds if recipe.model.task == "multi-label" else None
    fit = fit_config(config, logits, targets, thresholds=rule, temperature=True)
    return fit.config, fit.fallback_labels
