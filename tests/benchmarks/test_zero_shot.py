"""benchmarks/zero_shot.py: the splits of COCO's labels are facts, and every row is a recipe that loads."""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from labelwise.data.sources import open_data
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


def test_other_labels_are_taken_for_unseen(benchmark: Any, tmp_path: Path) -> None:
    (tmp_path / "photos.csv").write_text("image,labels,split\na.jpg,cat|cow,train\nb.jpg,bus,test\n")
    data = f"{tmp_path / 'photos.csv'}?check_files=no"
    arguments = Namespace(task="voc", data=data, instead=["cow"], epochs=2)
    recipe = benchmark.recipe_of("conse", 0, "words.npy", arguments)
    assert recipe.data.unseen == ("cow",)
    assert recipe.data.labels == ("cow",)  # bus and cat are the recipe's unseen labels
    assert recipe.epochs == 2


def test_labels_of_neither_list_are_left_out(benchmark: Any, tmp_path: Path) -> None:
    """COCO's dining table is neither seen nor unseen in the 48/17 split, and its photos stay."""
    task = benchmark.TASKS["coco-48-17"]
    names = [*task["seen"], *task["unseen"], "dining table"]
    rows = [f"{number}.jpg,{label},train" for number, label in enumerate(names)]
    (tmp_path / "all.csv").write_text("\n".join(["image,labels,split", *rows]) + "\n")
    data = benchmark.with_task_labels(f"{tmp_path / 'all.csv'}?check_files=no", task, tmp_path)
    table = open_data(f"{data}&check_files=no")
    assert table.labels == (*task["seen"], *task["unseen"])
    assert len(table) == 66
    assert table.has_positive().sum() == 65
