"""benchmarks/zero_shot.py: the splits of COCO's labels are facts, and every row is a recipe that loads."""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from labelwise.heads import with_options
from labelwise.heads.registry import preset

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("zero_shot")


def test_splits_of_coco(benchmark: Any) -> None:
    """65 seen and 15 unseen labels are all 80; 48 and 17 are among them."""
    every: set[str] = set()
    for name, seen, unseen in (("coco-65-15", 65, 15), ("coco-48-17", 48, 17)):
        task = benchmark.TASKS[name]
        assert (len(set(task["seen"])), len(set(task["unseen"]))) == (seen, unseen) == (len(task["seen"]), unseen)
        assert not set(task["seen"]) & set(task["unseen"])
        assert task["random_queries"] == seen // 4
        every |= {*task["seen"], *task["unseen"]}
    assert len(every) == 80


@pytest.mark.parametrize("task", ["voc", "coco-65-15", "coco-48-17"])
def test_every_row_is_a_recipe(benchmark: Any, task: str) -> None:
    arguments = Namespace(task=task, data="photos.csv", instead=None, epochs=None)
    for variant in benchmark.VARIANTS:
        recipe = benchmark.recipe_of(variant, 1, "words.npy", arguments)
        config = with_options(preset(recipe.model.head), recipe.model.options, variant)
        assert config.takes_new_labels
        assert recipe.seed == 1
        assert recipe.model.words.source == "words.npy"
        linear = recipe.model.head in ("conse", "fast0tag", "sdl")
        assert recipe.epochs == (benchmark.TASKS[task]["linear_epochs"] if linear else 6 if task == "voc" else 4)


def test_other_labels_are_taken_for_unseen(benchmark: Any) -> None:
    arguments = Namespace(task="coco-48-17", data="photos.csv", instead=["zebra", "bed"], epochs=2)
    recipe = benchmark.recipe_of("conse", 0, "words.npy", arguments)
    assert recipe.data.unseen == ("zebra", "bed")
    assert len(recipe.data.labels) == 48  # the 17 are left out
    assert recipe.epochs == 2
