"""From a recipe to what the loop trains: the model, and the batches it learns from."""

from __future__ import annotations

from lightning_fabric import Fabric
from torch import Tensor

from labelwise.data.dataset import ImageDataset
from labelwise.data.table import LabelTable
from labelwise.data.transforms import eval_transform, train_transform
from labelwise.features import FeatureCache
from labelwise.grouping import group_labels
from labelwise.heads import preset, uses_words, with_options
from labelwise.heads.config import QueryHeadConfig
from labelwise.model import LabelModel, create_model
from labelwise.preprocessing import Preprocessing
from labelwise.training.batches import Batches, FeatureBatches, ImageBatches, Share
from labelwise.training.recipe import Recipe
from labelwise.words import open_words


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
