"""What a training starts from: model, batches and, if there is one, the model to continue from."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from torch import Tensor

from labelwise.core.errors import LabelwiseError
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.stream_table import AnyTable, with_labels_read
from labelwise.data.table import LabelTable
from labelwise.features import FeatureCache
from labelwise.heads import preset, with_options
from labelwise.loading.augment import eval_transform, train_transform
from labelwise.loading.dataset import ImageDataset
from labelwise.model.config import ModelConfig
from labelwise.model.model import LabelModel, create_model, load_model
from labelwise.runtime.sessions import Engine, EngineName
from labelwise.training.batches import Batches, FeatureBatches, ImageBatches, Share
from labelwise.training.grouping import group_labels
from labelwise.training.recipe import Recipe
from labelwise.training.statistics import cooccurrence
from labelwise.words import open_words

_FEATURES_AT_ONCE = 4_000  # images of one process


def build_model(
    recipe: Recipe,
    labels: tuple[str, ...],
    table: AnyTable | None = None,  # of the training images: statistics of the labels come from it
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
        label_slot=None if table is None else grouped_labels(recipe, table),
        cooccurrence=None if table is None or not head.takes_cooccurrence else cooccurrence(with_labels_read(table)),
        **wanted.options,
    )
    own = model.config.preprocessing.model_dump() | {"resize": wanted.resize, "crop_ratio": wanted.crop_ratio}
    if wanted.normalisation == "plain":
        own = {key: value for key, value in own.items() if key not in ("mean", "std")}
    model.config = model.config.model_copy(update={"preprocessing": Preprocessing.parse(own, "model")})
    return model


def grouped_labels(recipe: Recipe, table: AnyTable) -> Tensor | None:
    """The query that each label shares [N]; None if the recipe groups labels at random."""
    wanted = recipe.model
    if wanted.grouping == "random":
        return None
    head = with_options(preset(wanted.head), wanted.options, f"head {wanted.head!r}")
    vectors = None if wanted.words is None else open_words(wanted.words).vectors(table.labels)
    return group_labels(wanted.grouping, head.query_groups, table, vectors)


def image_batches(
    recipe: Recipe, model: LabelModel, train_table: AnyTable, held_out: AnyTable | None, fabric: Fabric
) -> Batches:
    preprocessing = model.config.preprocessing
    bad = recipe.data.on_bad_image
    transform = train_transform(preprocessing, recipe.augmentation)
    augmented = ImageDataset(train_table, transform, bad, seed=recipe.seed, copies=recipe.augmentation.repeats)
    plain = None if held_out is None else ImageDataset(held_out, eval_transform(preprocessing), bad)
    share = Share(fabric.global_rank, fabric.world_size)
    return ImageBatches(augmented, plain, recipe.batch_size, recipe.workers, recipe.seed, share)


def feature_batches(
    recipe: Recipe, model: LabelModel, train_table: AnyTable, held_out: AnyTable | None, fabric: Fabric
) -> Batches:
    engines: dict[EngineName, Engine] = {}  # opened once for both tables

    def cache(table: AnyTable, flips: bool) -> FeatureCache:
        return FeatureCache.build(
            table,
            model.backbone,
            model.config.preprocessing,
            flips=flips,
            batch_size=min(recipe.batch_size, 32),
            on_bad_image=recipe.data.on_bad_image,
            progress=fabric.is_global_zero,
            engine="auto",
            engines=engines,
        )

    def compute_share(table: AnyTable, flips: bool) -> None:
        """Processes wait for each other every few minutes: for longer than the timeout, and they take one for lost."""
        if not isinstance(table, LabelTable):  # shards are read in their order, by the first process
            if fabric.is_global_zero:
                cache(table, flips)
            fabric.barrier()
            return
        rows = np.arange(share.rank, len(table), share.world_size)
        for part in np.array_split(rows, -(-len(table) // (_FEATURES_AT_ONCE * share.world_size))):
            with suppress(LabelwiseError):  # all processes meet the same one below
                cache(table.select(part), flips)
            fabric.barrier()

    share = Share(fabric.global_rank, fabric.world_size)
    flips = recipe.augmentation.flip > 0
    if share.world_size > 1:  # each computes its share, and then reads those of the others
        compute_share(train_table, flips)
        if held_out is not None:
            compute_share(held_out, flips=False)
    train_cache, held_out_cache = cache(train_table, flips), None if held_out is None else cache(held_out, flips=False)
    # With the features at hand, shards would be read for their labels alone.
    tables = with_labels_read(train_table), None if held_out is None else with_labels_read(held_out)
    return FeatureBatches(
        train_cache, held_out_cache, tables, recipe.batch_size, recipe.seed, share, recipe.augmentation.flip
    )


_ONLY_IN_TRAINING = {
    *("token_dropout", "query_noise", "query_cutout", "random_queries", "random_target", "dropout", "drop_path"),
    *("expert_init", "layer_init", "classifier_init"),
}


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
    weights = trained.state_dict()  # a layer for training alone may be missing on either side
    model.load_state_dict({name: weights.get(name, own) for name, own in model.state_dict().items()})


def _facts(config: ModelConfig) -> list[tuple[str, Any]]:
    """What decides a model's output besides its weights, by plain names."""
    facts = [("backbone", config.backbone.name), ("stage", config.backbone.stage), ("task", config.task)]
    facts += [(f"input {name}", value) for name, value in config.preprocessing.model_dump().items()]
    for name, value in config.head.model_dump().items():
        parts = value.items() if isinstance(value, dict) else [(name, value)]
        facts += [(part, setting) for part, setting in parts if part not in _ONLY_IN_TRAINING]
    return facts
