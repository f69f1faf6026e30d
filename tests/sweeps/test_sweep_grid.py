"""Grids and plans: what is run, under which names, and which mistakes are found before anything runs."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelwise.cli.sweep import parse_grid
from labelwise.core.errors import LabelwiseError
from labelwise.sweeps.plan import check_grid, combinations, plan, run_name
from labelwise.training import load_recipe


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], "say what to try"),
        (["seed"], "KEY=VALUE,VALUE"),
        (["seed="], "KEY=VALUE,VALUE"),
        (["seed=0,1,0"], "twice"),
        (["seed=0", "seed=1"], "given twice"),
        (["lr=1e-3", "optimizer.lr=1e-4"], "given twice"),
        (["head.widths=[64"], "cannot read"),
    ],
)
def test_mistakes_in_a_grid_are_named(settings: list[str], message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        check_grid(parse_grid(settings))


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(), min_size=1, max_size=4, unique=True)))
def test_every_combination_once(grid: dict[str, list[int]]) -> None:
    found = [tuple(settings.values()) for settings in combinations(grid)]
    assert found == list(product(*grid.values()))


@pytest.mark.parametrize("value", ["a/b", "../x", "a b", "*", None, [64, 16], "", "ä", "x=1,y"])
def test_names_are_plain_folder_names(value: object) -> None:
    name = run_name({"data.source": value})
    assert name.isascii()
    assert not set(name) & set("/\\ *=,'\"$")
    assert name.startswith("source-")


def test_a_plan_is_the_recipe_with_each_setting(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("model:\n  head: hsq\n  options: {dim: 64, shared_experts: 8}\nepochs: 3\n")
    grid = parse_grid(["head=gap,hsq", "lr=0.001,0.01", "seed=0,1"])
    runs = plan(tmp_path / "r.yaml", {"data.source": "x.csv", "epochs": 4}, grid)
    assert len(runs) == 8
    assert len({run.name for run in runs}) == 8
    for run in runs:
        assert run.recipe.model.head == run.settings["head"]
        assert run.recipe.optimizer.lr == run.settings["lr"]
        assert run.recipe.seed == run.settings["seed"]
        assert (run.recipe.epochs, run.recipe.data.source) == (4, "x.csv")
    assert runs[0].recipe.model.options == {}  # gap has neither
    assert runs[-1].recipe.model.options == {"dim": 64, "shared_experts": 8}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["head=hsq,gap", "head.shared_experts=0,4"], "'gap' has no option 'shared_experts'.*skip_invalid=True"),
        (["head=hsq,q2l", "head.shared_experts=0,4"], "has no effect on the head 'q2l'"),
        (["head=hsq-linear", "head.task_experts=1,2"], "has no effect on the head 'hsq-linear'"),
        (["head=hsqq"], "did you mean 'hsq'"),
        (["head.shared_expert=1,2"], "has no option 'shared_expert'"),
        (["head.shared_experts=-1"], "shared_experts=-1"),
        (["sed=0,1"], "unknown key 'sed'; did you mean 'seed'"),
        (["loss=asl"], "unknown loss"),
        (["description=a b,a-b"], "share the folder"),
    ],
)
def test_mistakes_are_found_before_anything_runs(settings: list[str], message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        plan(None, {}, parse_grid(settings))


def test_skip_invalid_runs_a_head_once_where_an_option_does_not_count() -> None:
    grid = parse_grid(["head=gap,q2l,hsq-linear,hsq", "head.shared_experts=0,4", "seed=0,1"])
    runs = plan(None, {}, grid, skip_invalid=True)
    assert [run.name for run in runs] == [
        *(f"head-{head}_seed-{seed}" for head in ("gap", "q2l", "hsq-linear") for seed in (0, 1)),
        *(f"head-hsq_shared_experts-{experts}_seed-{seed}" for experts in (0, 4) for seed in (0, 1)),
    ]
    # The same holds for what is set for all runs.
    gap, hsq = plan(None, {"model.options.dim": 32}, parse_grid(["head=gap,hsq"]), skip_invalid=True)
    assert (gap.recipe.model.options, hsq.recipe.model.options) == ({}, {"dim": 32, "token_dropout": 0.5})
    with pytest.raises(LabelwiseError, match="unknown option 'dim'"):
        plan(None, {"model.options.dim": 32}, parse_grid(["head=gap,hsq"]))
    without, hsq = plan(None, {"model.options.shared_experts": 4}, parse_grid(["head=q2l,hsq"]), skip_invalid=True)
    assert [run.recipe.model.options.get("shared_experts") for run in (without, hsq)] == [None, 4]
    # Experts that are put into another head count there.
    grid = parse_grid(["head=q2l", "head.experts=hybrid", "head.shared_experts=0,4"])
    assert len(plan(None, {}, grid)) == 2


def test_without_a_recipe_the_defaults_are_trains() -> None:
    (run,) = plan(None, {}, {"seed": [3]})
    assert run.recipe == load_recipe(None, {"seed": 3})
