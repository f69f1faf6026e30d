"""One training run: a recipe and a folder in, a model out. The folder holds everything the run was and knows."""

from __future__ import annotations

import hashlib
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from labelwise import losses
from labelwise.backbones.layers import put_channels_last
from labelwise.data.dataset import ImageDataset
from labelwise.data.label_list import seen_labels, unseen_labels
from labelwise.data.manifest_writer import write_manifest
from labelwise.data.open import open_data
from labelwise.data.split import DEFAULT_FRACTIONS, split_table
from labelwise.data.table import LabelTable
from labelwise.data.transforms import eval_transform, train_transform
from labelwise.errors import LabelwiseError
from labelwise.evaluation.fit import fit_config
from labelwise.features import FeatureCache
from labelwise.grouping import group_labels
from labelwise.heads import preset, uses_words, with_options
from labelwise.heads.config import QueryHeadConfig
from labelwise.model import LabelModel, create_model, load_model
from labelwise.model_config import ModelConfig
from labelwise.preprocessing import Preprocessing
from labelwise.training.batches import Batches, FeatureBatches, ImageBatches, Share
from labelwise.training.checkpoint import last_checkpoint
from labelwise.training.display import Display
from labelwise.training.loop import Trainer
from labelwise.training.recipe import DataRecipe, Recipe, save_recipe
from labelwise.training.run_folder import run_folder
from labelwise.training.start import check_start, earlier_splits, take_weights
from labelwise.words import open_words


def train(recipe: Recipe, folder: str | Path, *, resume: bool = False, overwrite: bool = False) -> LabelModel:
    """Train by `recipe` in `folder` and return the model, which is also saved in `folder`/model."""
    folder = Path(folder)
    check(recipe)
    if recipe.model.start is not None and not resume:
        check_start(recipe.model.start, folder)
    fabric = create_fabric(recipe)
    with run_folder(folder, resume, overwrite) if fabric.is_global_zero else nullcontext():
        fabric.barrier()
        display = Display(folder / "log.txt" if fabric.is_global_zero else None)
        try:
            return _train(recipe, folder, fabric, display, resume)
        except KeyboardInterrupt:
            display.close()
            started = (folder / "recipe.yaml").exists()
            resumed = f"Continue with: labelwise train --out {folder} --resume"
            display.say(f"stopped; nothing is lost. {resumed if started else 'Give the same command again.'}")
            raise
        finally:
            display.close()


def check(recipe: Recipe) -> None:
    """Mistakes in the recipe, before any photo is read."""
    model = recipe.model
    head = with_options(preset(model.head), model.options, f"head {model.head!r}")
    if uses_words(head) and model.words is None:
        raise LabelwiseError(
            "this head needs the labels' word vectors: --set model.words=package:glove-50d or FILE (docs/zero-shot.md)"
        )
    softmax = model.task == "single-label" or recipe.loss.name == "softmax-cross-entropy"
    if softmax and model.options.get("random_queries"):
        raise LabelwiseError("random_queries need independent labels: set random_queries=0, or task=multi-label")
    if losses.create(recipe.loss.name, **recipe.loss.options).options["reduction"] == "none":
        raise LabelwiseError("loss.options.reduction=none gives no number to minimise; use mean, batch or sum")
    if recipe.union and not recipe.can_join_images:
        raise LabelwiseError(
            "union joins the maps of two images into a scene with the labels of both, which are too many for "
            "task=single-label; use --set union=0"
        )
    if recipe.ema and recipe.strategy == "fsdp":
        raise LabelwiseError("averaged weights (ema) cannot be sharded: use --set ema=0, or --set strategy=ddp")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if recipe.batch_size % processes:
        raise LabelwiseError(f"batch_size={recipe.batch_size} cannot be shared evenly by {processes} processes")


def _train(recipe: Recipe, folder: Path, fabric: Fabric, display: Display, resume: bool) -> LabelModel:
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
        save_recipe(recipe, folder / "recipe.yaml")  # from here on the folder holds a run; before, only a mistake
    trained = trainer.run(resume)
    display.close()
    if not trained and (folder / "model").exists():  # as it is: its thresholds may have been fitted anew since
        display.say(f"{folder} is finished already")
        return load_model(folder)
    model = with_kept_weights(model, trainer, frozen)
    if fabric.is_global_zero:
        model.config = finished_config(model, trainer, recipe, batches)
        model.save(folder / "model")
        display.say(f"saved {folder / 'model'}; evaluate it with: labelwise evaluate {folder} --data … --split test")
    fabric.barrier()
    return model


def create_fabric(recipe: Recipe) -> Fabric:
    """One process, or under torchrun as many as it started, on as many machines."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    machines = int(os.environ.get("WORLD_SIZE", "1")) // local
    strategy: Any = recipe.strategy
    if strategy == "auto" and local * machines > 1:
        strategy = "ddp"
    if strategy == "fsdp":
        strategy = ModelParallelStrategy(shard, data_parallel_size=local * machines, tensor_parallel_size=1)
    fabric = Fabric(devices=local, num_nodes=machines, strategy=strategy, precision=recipe.precision)
    fabric.launch()
    return fabric


def shard(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """FSDP: every process keeps its part of the weights, gradients and optimizer state, and gathers them to compute."""
    if isinstance(module, LabelModel):
        fully_shard(module.backbone, mesh=mesh["data_parallel"])
    fully_shard(module, mesh=mesh["data_parallel"])
    return module


def open_tables(
    recipe: Recipe, display: Display, *, split_file: Path | None = None, run: Path | None = None
) -> tuple[LabelTable, LabelTable | None]:
    """The images to train on and to validate. Splits are made where the data has none, always the same for the same
    seed and images, and written to `split_file`; those that a `run` has written already are kept."""
    data = recipe.data
    if data.source is None:
        raise LabelwiseError("no data: say which with --data, for example --data photos.csv")
    table = open_data(data.source, labels=data.labels)
    if table.split_names == ("",):
        earlier = earlier_splits(table, run, recipe.model.start)
        table = earlier or split_table(table, DEFAULT_FRACTIONS, seed=recipe.seed)
        if split_file is not None:
            write_manifest(table, split_file)
            said = "made train, val and test" if earlier is None else f"those of {recipe.model.start}"
            display.say(f"{data.source} has no splits: {said}, written to {split_file}")
    train_table = seen_part(table.select(data.train), data, display)
    if data.validation is None:
        return train_table, None
    if data.validation in table.split_names or "+" in data.validation:
        return train_table, seen_part(table.select(data.validation), data, display)
    if data.validation != "val":
        table.select(data.validation)  # raises, and lists the splits there are
    if len(train_table) < 2:
        raise LabelwiseError("one image cannot be learned from and held out; add more, or --set data.validation=null")
    unsplit = train_table.with_splits([""] * len(train_table))
    fractions = {"train": 1 - data.validation_share, "val": data.validation_share}
    parts = split_table(unsplit, fractions, seed=recipe.seed)
    display.say(f"no validation split: {data.validation_share:.0%} of the training images are held out")
    return parts.select("train"), parts.select("val")


def seen_part(table: LabelTable, data: DataRecipe, display: Display) -> LabelTable:
    """What training may look at: of a zero-shot recipe the seen labels, and not every image."""
    if data.unseen is None:
        return table
    unseen = unseen_labels(table, data.unseen)
    seen = table.with_labels(seen_labels(table, unseen))
    usable = ~table.with_labels(unseen).has_positive()  # [M]
    if data.unseen_images != "drop":
        usable |= seen.has_positive() if data.unseen_images == "keep-labelled" else True
    if not usable.any():
        raise LabelwiseError(f"{table.source}: every image has an unseen label; add --set data.unseen_images=keep")
    if not usable.all():
        display.say(f"{(~usable).sum()} of {len(table)} images are left out: they have an unseen label")
    return seen.select(usable)


def fingerprint(*tables: LabelTable | None) -> str:
    """What tells whether the images or their labels have changed since a run was started."""
    digest = hashlib.sha256()
    for table in tables:
        if table is not None:
            digest.update("\n".join([*table.labels, *table.images]).encode("utf-8", "surrogateescape"))
            for part in (table.indptr, table.columns, table.values):
                digest.update(part.tobytes())
    return digest.hexdigest()


def grouped_labels(recipe: Recipe, table: LabelTable) -> Tensor | None:
    """Which labels share a query [N], where the recipe does not leave that to chance."""
    wanted = recipe.model
    if wanted.grouping == "random":
        return None
    head = with_options(preset(wanted.head), wanted.options, f"head {wanted.head!r}")
    groups = head.queries.groups if isinstance(head, QueryHeadConfig) else None
    vectors = None if wanted.words is None else open_words(wanted.words).vectors(table.labels)
    return group_labels(wanted.grouping, groups, table, vectors)


def build_model(recipe: Recipe, labels: tuple[str, ...], label_slot: Tensor | None = None) -> LabelModel:
    wanted = recipe.model
    head = with_options(preset(wanted.head), wanted.options, f"head {wanted.head!r}")
    model = create_model(
        wanted.backbone,
        wanted.head,
        labels,
        weights=wanted.weights if wanted.start is None else "none",
        stage=wanted.stage,
        size=wanted.size,
        drop_path=wanted.drop_path,
        task=wanted.task,
        words=wanted.words if uses_words(head) else None,  # they may be there for the grouping alone
        label_slot=label_slot,
        **wanted.options,
    )
    own = model.config.preprocessing.model_dump() | {"resize": wanted.resize, "crop_ratio": wanted.crop_ratio}
    if wanted.normalisation == "plain":
        own = {key: value for key, value in own.items() if key not in ("mean", "std")}
    model.config = model.config.model_copy(update={"preprocessing": Preprocessing.parse(own, "model")})
    return model


def image_batches(
    recipe: Recipe, model: LabelModel, train_table: LabelTable, held_out: LabelTable | None, fabric: Fabric
) -> Batches:
    preprocessing = model.config.preprocessing
    bad = recipe.data.on_bad_image
    transform = train_transform(preprocessing, recipe.augmentation)
    augmented = ImageDataset(train_table, transform, bad, seed=recipe.seed, copies=recipe.augmentation.repeats)
    plain = None if held_out is None else ImageDataset(held_out, eval_transform(preprocessing), bad)
    share = Share(fabric.global_rank, fabric.world_size)
    return ImageBatches(augmented, plain, recipe.batch_size, recipe.workers, recipe.seed, share)


def feature_batches(
    recipe: Recipe, model: LabelModel, train_table: LabelTable, held_out: LabelTable | None, fabric: Fabric
) -> Batches:
    def cache(table: LabelTable, flips: bool) -> FeatureCache:
        return FeatureCache.build(
            table,
            model.backbone,
            model.config.preprocessing,
            flips=flips,
            batch_size=min(recipe.batch_size, 32),
            workers=recipe.workers,
            on_bad_image=recipe.data.on_bad_image,
            progress=fabric.is_global_zero,
            engine="auto",
        )

    def both() -> tuple[FeatureCache, FeatureCache | None]:
        flips = recipe.augmentation.flip > 0
        return cache(train_table, flips), None if held_out is None else cache(held_out, flips=False)

    if fabric.is_global_zero:  # one process computes them, the others find them there
        both()
    fabric.barrier()
    train_cache, held_out_cache = both()
    tables = (train_table, held_out)
    share = Share(fabric.global_rank, fabric.world_size)
    return FeatureBatches(
        train_cache, held_out_cache, tables, recipe.batch_size, recipe.seed, share, recipe.augmentation.flip
    )


def with_kept_weights(model: LabelModel, trainer: Trainer, frozen: bool) -> LabelModel:
    """A model in one piece and in evaluation mode: the trained one may be spread over processes."""
    whole = LabelModel(model.config, backbone=model.backbone if frozen else None)
    (whole.head if frozen else whole).load_state_dict(trainer.kept())
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
