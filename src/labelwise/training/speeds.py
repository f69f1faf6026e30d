"""How fast this machine computes features and trains heads, measured in a few seconds on the user's own images."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from labelwise.data.decode import TableImages
from labelwise.data.images import BadImage
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.table import LabelTable
from labelwise.engines.choose import open_engine
from labelwise.features import FeatureCache
from labelwise.model.model import LabelModel
from labelwise.training.batches import Share
from labelwise.training.budget import Plan, Speeds, Work
from labelwise.training.display import Display
from labelwise.training.distributed import create_fabric
from labelwise.training.loop import Trainer
from labelwise.training.recipe import Recipe
from labelwise.training.setup import build_model
from labelwise.training.tables import learned_splits

_BATCHES = 4  # of images that are timed, after one to warm up
_STEPS = 5
_START = 6.0  # seconds for the model, the splits, thresholds, saving, and the engine once more


def measure_speeds(work: Work, source: LabelTable) -> Speeds:
    """The speeds of all plans of `work`."""
    plans = work.plans()
    sizes, heads = sorted({plan.size for plan in plans}), list(dict.fromkeys(plan.head for plan in plans))
    fabric = create_fabric(work.recipe)
    features: dict[int, float] = {}
    step: dict[tuple[str, int], float] = {}
    for head in heads:
        recipe = work.recipe_of(Plan(head, sizes[-1], 1.0, work.images))
        model = build_model(recipe, source.labels, source)
        model.backbone.requires_grad_(False).eval().to(fabric.device)
        features = features or _feature_seconds(work, recipe, model, source, sizes)
        for size in sizes:
            step[head, size] = _step_seconds(recipe, model, source, size, fabric)
    return Speeds(_START, features, step)


def _feature_seconds(
    work: Work, recipe: Recipe, model: LabelModel, source: LabelTable, sizes: list[int]
) -> dict[int, float]:
    """Seconds per image, from its file to its map, by size.

    Only the largest size is measured: to convert the backbone for an engine takes seconds for each size, and what grows
    with the pixels is the engine's part. Images whose features are cached take no time.
    """
    batch_size = min(recipe.batch_size, 32)
    table = _some_images(_learned_part(source, recipe), (_BATCHES + 1) * batch_size)
    views = 1 + (recipe.augmentation.flip > 0)
    found: dict[int, float] = {}
    missing: dict[int, float] = {}
    for size in sizes:
        stored = FeatureCache.stored_share(table, model.backbone, _resized(model, size), flips=views > 1)
        missing[size] = 1 - stored
    if not any(missing.values()):
        return missing
    preprocessing = _resized(model, sizes[-1])
    engine = open_engine(
        "auto",
        model.backbone,
        size=preprocessing.size,
        images=work.images * views,
        batch_size=batch_size,
        full_batches=True,
    )
    reading = in_engine = 0.0
    images = computed = 0
    started = time.perf_counter()
    for number, (rows, inputs) in enumerate(TableImages(table, preprocessing, "skip").batches(batch_size)):
        filled = np.resize(inputs, (batch_size, *inputs.shape[1:]))
        before = time.perf_counter()
        engine(filled)
        now = time.perf_counter()
        if number or len(table) <= batch_size:  # the first one warms up
            # A last batch that is filled up says what a whole one costs, but reads only its own images.
            reading, images = reading + before - started, images + len(rows)
            in_engine, computed = in_engine + now - before, computed + batch_size
        started = now
    for size in sizes:
        scaled = views * (size / sizes[-1]) ** 2 * in_engine / max(1, computed)
        found[size] = missing[size] * (reading / max(1, images) + scaled)
    return found


class _OneBatch:
    """The same batch in every step."""

    def __init__(self, maps: Tensor, targets: Tensor) -> None:
        self.maps, self.targets = maps, targets
        self.bad_images: list[BadImage] = []

    def __len__(self) -> int:
        return _STEPS

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for _ in range(_STEPS):
            yield self.maps, self.targets, torch.arange(len(self.maps))

    def validation(self, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
        yield from ()

    @property
    def train_images(self) -> int:
        return len(self.maps)


def _step_seconds(recipe: Recipe, model: LabelModel, source: LabelTable, size: int, fabric: Fabric) -> float:
    """Seconds per image of real training steps on made-up features: in a second epoch, after one to warm up."""
    with torch.no_grad():
        shape = model.backbone(torch.zeros(1, 3, size, size, device=fabric.device)).shape[1:]
    rows = np.arange(recipe.batch_size) % len(source)
    batch = _OneBatch(torch.randn(len(rows), *shape), torch.from_numpy(source.targets(rows)))
    short = recipe.model_copy(
        update={"epochs": 2, "data": recipe.data.model_copy(update={"validation": None}), "early_stop": None}
    )
    with TemporaryDirectory() as folder:
        trainer = Trainer(model.head, batch, len(source.labels), short, Path(folder), fabric, Display(None), "")
        trainer.run(resume=False)
    return 1 / float(trainer.progress.history[-1]["images_per_second"])


def _learned_part(source: LabelTable, recipe: Recipe) -> LabelTable:
    """The images that a training sees; all of those without splits, which are not made yet."""
    if source.split_names == ("",):
        return source
    return source.select(source.splits.rows(learned_splits(recipe.data, source)))


def _some_images(source: LabelTable, count: int) -> LabelTable:
    """Images from all over the table: the first ones may be of another kind than the rest."""
    return source.select(np.unique(np.linspace(0, len(source) - 1, count).astype(int)))


def _resized(model: LabelModel, size: int) -> Preprocessing:
    return model.config.preprocessing.model_copy(update={"size": size})
