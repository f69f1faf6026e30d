"""Which training to choose for a number of minutes: the plans there are, what each takes here, and how good it should
be. No PyTorch: speeds are measured in `labelwise.training.speeds`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import ceil, log2
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labelwise.core.errors import LabelwiseError, counted
from labelwise.data.splitting import DEFAULT_FRACTIONS
from labelwise.data.table import LabelTable
from labelwise.runtime.run_files import RECIPE
from labelwise.training.recipe import OWN_PHOTOS, Recipe, load_recipe, run_recipe
from labelwise.training.tables import learned_splits, own_validation, splits_to_refit

SIZES = (224, 256, 288)
HEADS = (OWN_PHOTOS.model.head, "gap")
LENGTHS = (0.5, 1.0)  # of the recipe's epochs and `min_steps`; twice as many gain nothing
SHARES = tuple(0.8**step for step in range(24))  # of the images, where not all of them fit
FEWEST_STEPS = 350  # a shorter training with fewer is no plan: 200 instead of 400 cost 7 mAP on clip art
FEWEST_IMAGES = 100  # a plan for fewer is no plan, unless there are no more
MARGIN = 0.1  # of the time, for a machine that is busier later on
CLEARLY = 0.97  # what a plan must leave of the missing mAP of another one to be worth its time
VALIDATION = 0.4  # seconds of an image in validation, as a share of those in a training step

# What each choice leaves of the mAP that is missing to 100 %, as a factor; 1 for the default recipe. Means over VOC and
# COCO by benchmarks/cpu_budget.py; docs/research/cpu-budget.md says where they come from and which one is assumed.
LEFT_BY_SIZE = {224: 1.0, 256: 0.96, 288: 0.919}
LEFT_BY_HEAD = {"gap": 1.095}
LEFT_BY_LENGTH = {0.5: 1.0, 1.0: 1.0}  # 0.997 was measured, which is too close to tell
LEFT_BY_DOUBLING = 0.898  # twice the images


class Plan(NamedTuple):
    """A training that could be done.

    Attributes:
        head: Name of the head.
        size: Input size in pixels.
        length: Of the training: the factor on the recipe's epochs and `min_steps`.
        images: To train and validate on.
    """

    head: str
    size: int
    length: float
    images: int


class Speeds(NamedTuple):
    """Seconds on this machine.

    Attributes:
        start: Fixed cost of a training, in seconds.
        features: Per image, by size; 0 where features are cached.
        step: Per image in a training step, by head and size.
    """

    start: float
    features: Mapping[int, float]
    step: Mapping[tuple[str, int], float]


@dataclass(frozen=True)
class Work:
    """What there is to train on, and how: all that the time of a plan depends on besides the machine's speed.

    Attributes:
        images: Of training and validation together.
        training: How many of them are for training.
        refits: Whether the validation images are learned from at the end.
        changes: Settings of the default recipe that the user has named, by their dotted keys: every plan keeps them.
    """

    images: int
    training: int
    refits: bool
    changes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, source: LabelTable, changes: Mapping[str, Any]) -> Work:
        """The work on some data. Its images are counted, not split: that would read every file."""
        recipe = load_recipe(None, changes)
        data = recipe.data
        refits = bool(recipe.refit and splits_to_refit(data, source))
        if source.split_names == ("",):  # splits of the same sizes as `open_tables` makes
            ends = np.cumsum([*DEFAULT_FRACTIONS.values()]) * len(source)
            names = [*DEFAULT_FRACTIONS]
            source = source.with_splits([names[split] for split in np.searchsorted(ends, np.arange(len(source)) + 0.5)])
        images = len(source.splits.rows(learned_splits(data, source)))
        training = len(source.rows(data.train))
        if data.validation and not own_validation(data, source.split_names):
            training -= round(training * data.validation_share)
        return cls(images, max(1, training), refits, changes)

    @cached_property
    def recipe(self) -> Recipe:
        """What all plans have in common."""
        return load_recipe(None, self.changes)

    def plans(self) -> list[Plan]:
        """Every training that could be done; of what the user has named, only that."""
        own = self.recipe.model
        # Options belong to a head.
        heads = (own.head,) if any(key.startswith(("model.head", "model.options")) for key in self.changes) else HEADS
        # Another backbone may have other sizes.
        given = "model.size" in self.changes or own.backbone != OWN_PHOTOS.model.backbone
        sizes = (own.size or OWN_PHOTOS.model.size or SIZES[0],) if given else SIZES
        lengths = (1.0,) if self.changes.keys() & {"epochs", "min_steps"} else LENGTHS
        most = min(self.images, self.recipe.data.max_images or self.images)
        shares = (1.0,) if "data.max_images" in self.changes else SHARES
        counts = sorted({max(min(most, FEWEST_IMAGES), round(share * most)) for share in shares}, reverse=True)
        plans = [Plan(*choice) for choice in product(heads, sizes, lengths, counts)]
        return [plan for plan in plans if self.is_long_enough(plan)]

    def is_long_enough(self, plan: Plan) -> bool:
        """Whether a shorter training still has enough steps."""
        return plan.length == 1 or self.epochs(plan) * self._steps_of_an_epoch(plan) >= FEWEST_STEPS

    def epochs(self, plan: Plan) -> int:
        """Of the training, without the last ones on all images."""
        return self.shortened(plan).with_enough_epochs(self._steps_of_an_epoch(plan)).epochs

    def _steps_of_an_epoch(self, plan: Plan) -> int:
        batches = max(1, self.training_images(plan) // self.recipe.batch_size)
        return ceil(batches / self.recipe.accumulate)

    def training_images(self, plan: Plan) -> int:
        """How many of the plan's images are for training."""
        return max(1, round(plan.images * self.training / self.images))

    def shortened(self, plan: Plan) -> Recipe:
        """The recipe with the plan's length."""
        lengths = {name: round(plan.length * getattr(self.recipe, name)) for name in ("epochs", "min_steps")}
        return self.recipe.model_copy(update={**lengths, "epochs": max(1, lengths["epochs"])})

    def recipe_of(self, plan: Plan) -> Recipe:
        """The recipe of a plan; it limits the images only if they are not all."""
        lengths = self.shortened(plan)
        settings = {"model.head": plan.head, "model.size": plan.size}
        settings |= {"epochs": lengths.epochs, "min_steps": lengths.min_steps}
        some = {"data.max_images": plan.images} if plan.images < self.images else {}
        return load_recipe(None, {**self.changes, **settings, **some})

    def seconds(self, plan: Plan, speeds: Speeds) -> float:
        """How long the plan takes from now on."""
        step, epochs = speeds.step[plan.head, plan.size], self.epochs(plan)
        training = self.training_images(plan)
        seen = epochs * (training + VALIDATION * (plan.images - training))
        if self.refits:
            seen += max(1, round(self.recipe.refit * epochs)) * plan.images
        return speeds.start + plan.images * speeds.features[plan.size] + seen * step


def expected_left(plan: Plan) -> float:
    """What should be missing to 100 % mAP, up to a factor that is the same for all plans on the same data."""
    choices = LEFT_BY_SIZE.get(plan.size, 1.0) * LEFT_BY_HEAD.get(plan.head, 1.0) * LEFT_BY_LENGTH[plan.length]
    return choices * float(LEFT_BY_DOUBLING ** log2(plan.images))


@dataclass(frozen=True)
class Choice:
    """The best plan that fits into some minutes.

    Attributes:
        work: What it was chosen for.
        budget: The minutes there are.
        plan: What to train.
        minutes: How long that should take in all, with a margin.
        fitting: How many plans fit.
        better: The cheapest plan that should be clearly more accurate; None if there is none.
        better_minutes: How long that would take.
    """

    work: Work
    budget: float
    plan: Plan
    minutes: float
    fitting: int
    better: Plan | None
    better_minutes: float

    @property
    def recipe(self) -> Recipe:
        """The plan as a recipe, which says where its settings come from."""
        why = {"description": f"{_planned_for(self.budget)} {self._described(self.plan)}"}
        return self.work.recipe_of(self.plan).model_copy(update=why)

    def __str__(self) -> str:
        """What was picked and why, and what more time would buy."""
        why = f"of {counted(self.fitting, 'plan')} that fit, it should be the most accurate"
        told = f"{_minutes(self.budget)}: {self._described(self.plan)}, about {self.minutes:.1f} minutes; {why}"
        if self.better is None:
            return f"{told}. More time would hardly improve it"
        more = counted(ceil(self.better_minutes), "minute")
        return f"{told}. {more} would buy {self._described(self.better, self.plan)}"

    def _described(self, plan: Plan, instead_of: Plan | None = None) -> str:
        """A plan in words; of one `instead_of` another, what differs."""
        everything = plan.images == self.work.images
        words = {
            "head": plan.head,
            "size": f"{plan.size} pixels",
            "length": counted(self.work.epochs(plan), "epoch"),
            "images": f"all {plan.images:,} images"
            if everything
            else f"{plan.images:,} of {self.work.images:,} images",
        }
        known = {} if instead_of is None else instead_of._asdict()
        return ", ".join(text for name, text in words.items() if getattr(plan, name) != known.get(name))


def choose(work: Work, speeds: Speeds, minutes: float, spent: float = 0.0) -> Choice:
    """The plan with the highest expected accuracy among those that fit; of equals, the one with more epochs.

    Args:
        work: What there is to train on.
        speeds: Of this machine.
        minutes: For everything.
        spent: Seconds of them that are over.
    """
    times = {plan: (spent + work.seconds(plan, speeds) / (1 - MARGIN)) / 60 for plan in work.plans()}
    fitting = [plan for plan, time in times.items() if time <= minutes]
    if not fitting:
        least = ceil(10 * min(times.values())) / 10
        raise LabelwiseError(
            f"no training on the {work.images:,} images fits into {_minutes(minutes)} on this machine; the shortest "
            f"takes about {_minutes(least)}",
            options={"minutes": least},
        )
    best = min(fitting, key=lambda plan: (expected_left(plan), -plan.length))
    better = [plan for plan in times if expected_left(plan) < CLEARLY * expected_left(best)]
    cheapest = min(better, key=lambda plan: times[plan], default=None)
    better_minutes = 0.0 if cheapest is None else times[cheapest]
    return Choice(work, minutes, best, times[best], len(fitting), cheapest, better_minutes)


def planned_before(changes: Mapping[str, Any], folder: Path, minutes: float) -> Recipe | None:
    """The recipe of an earlier plan for so many minutes whose run is in `folder`, with `changes`; None without one.

    Whoever repeats a command continues its unfinished run: its features are cached now, so a new plan would differ.
    """
    try:
        earlier = run_recipe(folder) if (folder / RECIPE).is_file() else None
    except LabelwiseError:  # it cannot be read: not ours
        return None
    if earlier is None or not earlier.description.startswith(_planned_for(minutes)):
        return None
    plan = {name: getattr(earlier, name) for name in ("description", "epochs", "min_steps", "refit")}
    plan |= {"model.head": earlier.model.head, "model.size": earlier.model.size}
    return load_recipe(None, {**plan, "data.max_images": earlier.data.max_images, **changes})


def _planned_for(minutes: float) -> str:
    return f"Planned for {_minutes(minutes)}:"


def _minutes(minutes: float) -> str:
    """
    >>> _minutes(1), _minutes(2.5), _minutes(1e6)
    ('1 minute', '2.5 minutes', '1000000 minutes')
    """
    return f"{np.format_float_positional(float(minutes), trim='-')} {'minute' if minutes == 1 else 'minutes'}"
