"""What a training starts from: tables, model, batches and, if there is one, the model to continue from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from labelwise.core.errors import LabelwiseError
from labelwise.core.files import sha256
from labelwise.data.labels import seen_labels, unseen_labels
from labelwise.data.manifests import write_manifest
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.sources import open_data
from labelwise.data.splitting import DEFAULT_FRACTIONS, split
from labelwise.data.table import LabelTable
from labelwise.features import FeatureCache
from labelwise.heads import preset, with_options
from labelwise.loading.augment import eval_transform, train_transform
from labelwise.loading.dataset import ImageDataset
from labelwise.model.config import ModelConfig
from labelwise.model.folder import find_folder
from labelwise.model.model import LabelModel, create_model, load_model
from labelwise.training.batches import Batches, FeatureBatches, ImageBatches, Share
from labelwise.training.display import Display
from labelwise.training.grouping import group_labels
from labelwise.training.recipe import DataRecipe, Recipe
from labelwise.training.run import with_splits_of_run
from labelwise.words import open_words


def open_tables(
    recipe: Recipe, display: Display, *, split_file: Path | None = None, run: Path | None = None
) -> tuple[LabelTable, LabelTable | None]:
    """The training and the validation images.

    Data without splits is split, always in the same way for the same seed and images, and written to `split_file`;
    splits that a `run` has already written are used again.
    """
    data = recipe.data
    if data.source is None:
        raise LabelwiseError("no data to train on; name it", options={"data": "photos.csv"})
    table = open_data(data.source, labels=data.labels)
    if table.split_names == ("",):
        earlier = earlier_splits(table, run, recipe.model.start)
        table = earlier or split(table, DEFAULT_FRACTIONS, seed=recipe.seed)
        if split_file is not None:
            write_manifest(table, split_file)
            origin = "train, val and test were made" if earlier is None else f"using those of {recipe.model.start}"
            display.say(f"{data.source} has no splits: {origin}, see {split_file}")
    train_table = usable_part(table.select(data.train), data, display)
    if data.validation is None:
        return train_table, None
    if data.validation in table.split_names or "+" in data.validation:
        return train_table, usable_part(table.select(data.validation), data, display)
    if data.validation != "val":
        table.select(data.validation)  # raises, and lists the splits there are
    if len(train_table) < 2:
        raise LabelwiseError(
            "one image is too few to train and validate; add more, or train without validation",
            options={"data.validation": "null"},
        )
    unsplit = train_table.with_splits([""] * len(train_table))
    fractions = {"train": 1 - data.validation_share, "val": data.validation_share}
    parts = split(unsplit, fractions, seed=recipe.seed)
    display.say(f"no validation split: {data.validation_share:.0%} of the training images are held out")
    return parts.select("train"), parts.select("val")


def usable_part(table: LabelTable, data: DataRecipe, display: Display) -> LabelTable:
    """What training may see: in a zero-shot recipe, only the seen labels and not every image."""
    if data.unseen is not None:
        unseen = unseen_labels(table, data.unseen)
        seen = table.with_labels(seen_labels(table, unseen))
        usable = ~table.with_labels(unseen).has_positive()  # [M]
        if data.unseen_images != "drop":
            usable |= seen.has_positive() if data.unseen_images == "keep-labelled" else True
        table = _only(seen, usable, "have an unseen label", {"data.unseen_images": "keep"}, display)
    if data.empty_images == "drop":
        table = _only(table, table.has_positive(), "have no label", {"data.empty_images": "keep"}, display)
    return table


def _only(table: LabelTable, usable: NDArray[np.bool_], why: str, keep: dict[str, Any], display: Display) -> LabelTable:
    if not usable.any():
        raise LabelwiseError(f"{table.source}: all images {why}; keep these images", options=keep)
    if not usable.all():
        display.say(f"{(~usable).sum()} of {len(table)} images {why} and are left out")
    return table.select(usable)


def earlier_splits(table: LabelTable, run: Path | None, start: str | None) -> LabelTable | None:
    """`table` with the splits of `run`, else of the run that it starts from; None if there are none."""
    own = with_splits_of_run(table, run)
    if own.split_names != ("",):
        return own
    if start is None:
        return None
    known = with_splits_of_run(table, start)
    if known.split_names == ("",):
        return None
    # Images that the earlier run did not have are trained on; those it was trained on never become test images.
    return known.with_splits([split or "train" for split in known.splits])


def data_fingerprint(*tables: LabelTable | None) -> str:
    """The same as long as the images and their labels are: a run resumes only on the same data."""
    parts: list[str | bytes] = []
    for table in tables:
        if table is not None:
            parts.append("\n".join([*table.labels, *table.images]))
            parts += [values.tobytes() for values in (table.indptr, table.columns, table.values)]
    return sha256(*parts).hexdigest()


def build_model(
    recipe: Recipe,
    labels: tuple[str, ...],
    label_slot: Tensor | None = None,
    *,
    word_vectors: Tensor | None = None,  # [N, d_w]; default: from the recipe's word source
) -> LabelModel:
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
        words=wanted.words if head.takes_words else None,  # they may be there for the grouping alone
        word_vectors=word_vectors,
        label_slot=label_slot,
        **wanted.options,
    )
    own = model.config.preprocessing.model_dump() | {"resize": wanted.resize, "crop_ratio": wanted.crop_ratio}
    if wanted.normalisation == "plain":
        own = {key: value for key, value in own.items() if key not in ("mean", "std")}
    model.config = model.config.model_copy(update={"preprocessing": Preprocessing.parse(own, "model")})
    return model


def grouped_labels(recipe: Recipe, table: LabelTable) -> Tensor | None:
    """The query that each label shares [N]; None if the recipe groups labels at random."""
    wanted = recipe.model
    if wanted.grouping == "random":
        return None
    head = with_options(preset(wanted.head), wanted.options, f"head {wanted.head!r}")
    vectors = None if wanted.words is None else open_words(wanted.words).vectors(table.labels)
    return group_labels(wanted.grouping, head.query_groups, table, vectors)


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

    if fabric.is_global_zero:  # one process computes the features, the others read them
        both()
    fabric.barrier()
    train_cache, held_out_cache = both()
    tables = (train_table, held_out)
    share = Share(fabric.global_rank, fabric.world_size)
    return FeatureBatches(
        train_cache, held_out_cache, tables, recipe.batch_size, recipe.seed, share, recipe.augmentation.flip
    )


_ONLY_IN_TRAINING = {
    *("token_dropout", "query_noise", "random_queries", "dropout", "drop_path"),
    *("expert_init", "layer_init", "classifier_init"),
}


def check_start(start: str, folder: Path) -> None:
    """Raise an error if the model to continue from lies in the run that would be replaced."""
    if find_folder(start).resolve().is_relative_to(folder.resolve()):
        raise LabelwiseError(f"{start!r} is the run that would be replaced; choose another folder for the new one")


def take_weights(model: LabelModel, start: str) -> None:
    """Load the weights of a trained model, which must have the same labels and architecture."""
    trained = load_model(start)
    if trained.labels != model.labels:
        raise LabelwiseError(
            f"{start!r} has other labels than the data, or the same in another order; select and order the data's "
            "labels with data.labels and data.unseen in the recipe"
        )
    theirs, ours = (dict(_facts(one.config)) for one in (trained, model))
    differing = [
        f"{name} {theirs.get(name)}, not {ours.get(name)}" for name in theirs if theirs[name] != ours.get(name)
    ]
    if differing:
        raise LabelwiseError(
            f"{start!r} is not the model that this recipe describes: it has {'; '.join(differing)}. A run folder "
            "brings its own settings; for a model folder, give the same head, backbone, size and options"
        )
    model.load_state_dict(trained.state_dict())


def _facts(config: ModelConfig) -> list[tuple[str, Any]]:
    """What decides a model's output besides its weights, by plain names."""
    facts = [("backbone", config.backbone.name), ("stage", config.backbone.stage), ("task", config.task)]
    facts += [(f"input {name}", value) for name, value in config.preprocessing.model_dump().items()]
    for name, value in config.head.model_dump().items():
        parts = value.items() if isinstance(value, dict) else [(name, value)]
        facts += [(part, setting) for part, setting in parts if part not in _ONLY_IN_TRAINING]
    return facts
