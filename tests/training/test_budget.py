"""`lw.train(minutes=…)`: a plan is a pure function of data and speeds, so its promises are properties; then real
trainings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.data.manifests import write_manifest
from labelwise.data.sources import open_data
from labelwise.training.batches import Share, steps_of
from labelwise.training.budget import HEADS, SIZES, Plan, Speeds, Work, choose, expected_left
from labelwise.training.display import Display
from labelwise.training.recipe import load_recipe, run_recipe
from labelwise.training.tables import open_tables, splits_to_refit

TINY: dict[str, Any] = {
    "backbone": "test_resnet",
    "weights": "none",
    "size": 32,
    "batch_size": 8,
    "head.dim": 16,
    "epochs": 2,
}

_PER_IMAGE = st.floats(1e-5, 2.0)
_WORK = st.builds(
    lambda images, share, refits, changes: Work(images, max(1, round(share * images)), refits, changes),
    st.integers(2, 200_000),
    st.floats(0.5, 0.95),
    st.booleans(),
    st.fixed_dictionaries(
        {},
        optional={
            "model.size": st.sampled_from([160, 224, 320]),
            "model.head": st.sampled_from(["gap", "hsq", "q2l"]),
            "epochs": st.integers(1, 30),
            "data.max_images": st.integers(2, 3000),
            "accumulate": st.integers(1, 8),
        },
    ),
)
_SPEEDS = st.builds(
    lambda start, features, step: Speeds(start, dict.fromkeys((*SIZES, 160, 320), features), _Same(step)),
    st.floats(0, 60),
    _PER_IMAGE,
    _PER_IMAGE,
)


class _Same(dict[tuple[str, int], float]):
    """The same speed for every head and size."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __missing__(self, key: tuple[str, int]) -> float:
        return self.seconds


@settings(deadline=None, max_examples=40)
@given(_WORK, _SPEEDS, st.floats(0.01, 1000), st.floats(0, 60))
@example(Work(1000, 800, True, {"accumulate": 4}), Speeds(1, dict.fromkeys(SIZES, 0.01), _Same(0.01)), 1000, 0)
def test_a_plan_fits_and_keeps_what_is_named(work: Work, speeds: Speeds, minutes: float, spent: float) -> None:
    try:
        choice = choose(work, speeds, minutes, spent)
    except LabelwiseError as error:  # what it asks for is enough, and less is not
        minutes = float(str(error.options["minutes"]))
        with pytest.raises(LabelwiseError):
            choose(work, speeds, minutes - 0.11, spent)  # it is rounded up to a tenth
        choice = choose(work, speeds, minutes, spent)
    assert choice.minutes <= minutes
    assert spent + work.seconds(choice.plan, speeds) <= 60 * minutes
    assert choice.plan.images <= work.images
    recipe, given_ = choice.recipe, work.changes
    assert (recipe.model.head, recipe.model.size) == (choice.plan.head, choice.plan.size)
    for key, found in (("model.size", recipe.model.size), ("model.head", recipe.model.head), ("epochs", recipe.epochs)):
        assert given_.get(key, found) == found
    assert min(recipe.data.max_images or work.images, work.images) == choice.plan.images
    assert choice.plan.images <= given_.get("data.max_images", work.images)
    # The recipe trains as long as was counted.
    training = max(1, round(choice.plan.images * work.training / work.images))
    steps = ceil(steps_of(training, recipe.batch_size, Share())[0] / recipe.accumulate)
    assert recipe.with_enough_epochs(steps).epochs == work.epochs(choice.plan)


@settings(deadline=None, max_examples=25)
@given(_WORK, _SPEEDS, st.floats(0.1, 100), st.floats(1, 10))
def test_more_time_and_a_faster_machine_are_never_worse(
    work: Work, speeds: Speeds, minutes: float, more: float
) -> None:
    try:
        expected = expected_left(choose(work, speeds, minutes).plan)
    except LabelwiseError:
        return
    assert expected_left(choose(work, speeds, more * minutes).plan) <= expected
    faster = Speeds(speeds.start, {size: one / more for size, one in speeds.features.items()}, speeds.step)
    assert expected_left(choose(work, faster, minutes).plan) <= expected


def test_it_takes_all_images_at_the_best_size_if_there_is_time_and_a_sample_if_there_is_not() -> None:
    work = Work(5011, 4008, True)
    speeds = Speeds(5, {224: 0.01, 256: 0.013, 288: 0.017}, {(head, size): 0.004 for head in HEADS for size in SIZES})
    assert choose(work, speeds, 60).plan == Plan(HEADS[0], 288, 1.0, 5011)
    assert "More time would hardly improve it" in str(choose(work, speeds, 60))
    short = choose(work, speeds, 2)
    assert short.plan.images < 5011
    assert f"{short.plan.images:,} of 5,011 images" in str(short)
    assert str(short).startswith("2 minutes: ")
    assert "minutes would buy" in str(short)
    assert str(choose(work, speeds, 1e6)).startswith("1000000 minutes: ")
    with pytest.raises(LabelwiseError, match=r"the 5,011 images fits into 0\.05 minutes on this machine"):
        choose(work, speeds, 0.05)


def test_the_counts_are_those_of_the_training(sample: Path, tmp_path: Path) -> None:
    """They are counted without splitting: that would read every file."""
    table = open_data(sample)
    unsplit, unvalidated = tmp_path / "unsplit.csv", tmp_path / "unvalidated.csv"
    write_manifest(table.with_splits([""] * len(table)), unsplit)
    write_manifest(table.with_splits(["test" if n % 5 == 0 else "train" for n in range(len(table))]), unvalidated)
    for data, learned in [*product((sample, unsplit), ("train", "trainval")), (unvalidated, "train")]:
        changes = {"data.source": str(data), "data.train": learned}
        train, held_out = open_tables(load_recipe(None, changes), Display(None))
        work = Work.of(open_data(data), changes)
        assert held_out is not None
        assert abs(work.training - len(train)) <= 1
        assert abs(work.images - len({*train.images, *held_out.images})) <= 1
        assert work.refits


def test_a_sample_is_the_same_again_and_leaves_the_test_images_alone(sample: Path) -> None:
    recipe = load_recipe(None, {"data.source": str(sample), "data.max_images": 30})
    train, held_out = open_tables(recipe, Display(None))
    assert held_out is not None
    assert len(train) + len(held_out) == 30
    again, none = open_tables(recipe.refitting("train+val"), Display(None))
    assert none is None
    assert {*again.images} == {*train.images, *held_out.images}
    whole = open_data(sample)
    assert not {*again.images} & {*whole.select("test").images}
    # Each label keeps its share, to within three images: the splits are drawn one by one.
    expected = whole.select("train+val").positives_per_label() * 30 / len(whole.select("train+val"))
    assert (abs(again.positives_per_label() - expected) <= 3).all()


def test_a_sample_has_images_of_every_split_it_is_drawn_from(sample: Path) -> None:
    changes = {"data.source": str(sample), "data.max_images": 2}
    train, held_out = open_tables(load_recipe(None, changes), Display(None))
    assert held_out is not None
    assert (len(train), len(held_out)) == (1, 1)
    recipe = load_recipe(None, {**changes, "data.train": "trainval"})
    both, _ = open_tables(recipe, Display(None))
    assert {*both.images} == {*train.images, *held_out.images}
    refitted, _ = open_tables(recipe.refitting(splits_to_refit(recipe.data, open_data(sample)) or ""), Display(None))
    assert {*refitted.images} == {*both.images}


def test_a_training_of_some_minutes_ends_in_time_and_can_be_run_again(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    run = lw.train(sample, out=tmp_path / "run", minutes=1, **TINY)
    assert time.monotonic() - started < 60
    assert "1 minute: " in capsys.readouterr().err
    assert run.recipe is not None
    assert run.recipe.description.startswith("Planned for 1 minute: ")
    assert (run.recipe.model.size, run.recipe.model.backbone) == (32, "test_resnet")
    again = lw.train(recipe=tmp_path / "run" / "recipe.yaml", out=tmp_path / "again")
    assert again.history[-1]["loss"] == run.history[-1]["loss"]
    with pytest.raises(LabelwiseError, match="already holds a run"):
        lw.train(sample, out=tmp_path / "run", minutes=1, **TINY)


@contextmanager
def _interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trainings in it are stopped before they are saved."""
    from labelwise.training.loop import Trainer

    def interrupt(self: Trainer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "best_weights", interrupt)
        with pytest.raises(KeyboardInterrupt):
            yield


def test_the_same_command_continues_its_unfinished_run_with_its_plan(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _interrupted(monkeypatch):
        lw.train(sample, out=tmp_path / "run", minutes=2, **TINY)
    plan = run_recipe(tmp_path / "run")
    monkeypatch.setattr("labelwise.training.speeds.measure_speeds", lambda *args: pytest.fail("it has a plan"))
    run = lw.train(sample, out=tmp_path / "run", minutes=2, **TINY)
    assert run.recipe == plan


def test_an_unfinished_run_without_a_plan_is_not_continued(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _interrupted(monkeypatch):
        lw.train(sample, out=tmp_path / "run", **TINY)
    with pytest.raises(LabelwiseError, match="already holds a run"):
        lw.train(sample, out=tmp_path / "run", minutes=2, **TINY)


def test_a_late_training_leaves_out_the_refit_and_says_so(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labelwise.training.train._refit_ends", lambda *args: float("inf"))
    run = lw.train(sample, out=tmp_path / "run", minutes=2, **TINY)
    assert run.recipe is not None
    assert run.recipe.refit == 0
    assert not run.refitted
    assert "no time left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"minutes": 0}, "a number above 0"),
        ({"minutes": float("nan")}, "a number above 0"),
        ({"minutes": 5, "recipe": "recipes/own-photos.yaml"}, "leave out the minutes"),
        ({"minutes": 5, "freeze": "none"}, "frozen backbone"),
        ({"minutes": 5, "runner": "ray"}, "one process"),
        ({"minutes": 5, "resume": True}, "a resumed run"),
    ],
)
def test_what_cannot_be_planned_is_told_at_once(settings_: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = None if "resume" in settings_ else "photos.csv"
    with pytest.raises(LabelwiseError, match=message):
        lw.train(data, out=tmp_path / "run", **settings_)


def test_a_training_is_not_shortened_to_a_few_steps() -> None:
    for images, lengths in ((2000, {1.0}), (20_000, {0.5, 1.0})):
        work = Work(images, round(0.8 * images), True)
        assert {plan.length for plan in work.plans() if plan.images == images} == lengths
