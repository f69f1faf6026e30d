"""Plan a sweep: from a grid to a list of runs, with every mistake found before the first one starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.data.manifests import row_names, write_manifest
from labelwise.data.sources import open_data
from labelwise.data.splitting import DEFAULT_FRACTIONS, split
from labelwise.data.table import LabelTable
from labelwise.runtime.run_files import SPLITS
from labelwise.training.check import OPTION, check, check_options, useless_options
from labelwise.training.recipe import Recipe, full_key, load_recipe


def check_grid(grid: Mapping[str, Sequence[Any]]) -> None:
    """Raise an error for a grid without values, or with the same twice.

    >>> check_grid({"head": "hsq"})
    Traceback (most recent call last):
    labelwise.core.errors.LabelwiseError: the values to try for 'head' must be a list, not 'hsq'
    """
    if not grid:
        raise LabelwiseError("say what to try", options={"grid": {"head": ["gap", "hsq"], "seed": [0, 1, 2]}})
    keys = list(grid)
    for number, (key, values) in enumerate(grid.items()):
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise LabelwiseError(f"the values to try for {key!r} must be a list, not {values!r}")
        if full_key(key) in map(full_key, keys[:number]):
            raise LabelwiseError(f"{key!r} is given twice in the grid; put all its values into one list")
        if not values or any(value in values[:place] for place, value in enumerate(values)):
            raise LabelwiseError(f"the grid has no value or the same value twice for {key!r}: {list(values)}")


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every choice of one value per key; the last key changes fastest.

    >>> combinations({"head": ["hsq", "gap"], "seed": [0, 1]})[1:3]
    [{'head': 'hsq', 'seed': 1}, {'head': 'gap', 'seed': 0}]
    """
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def run_name(settings: Mapping[str, Any]) -> str:
    """The name of a run's folder, from its settings.

    >>> run_name({"head": "hsq", "head.shared_experts": 4, "head.widths": [64, 16], "lr": "1e-3"})
    'head-hsq_shared_experts-4_widths-64x16_lr-1e-3'
    """
    return "_".join(f"{_plain(key.rpartition('.')[2])}-{_plain(value)}" for key, value in settings.items())


def _plain(value: Any) -> str:
    """A value with only characters that are safe in shells and file systems."""
    text = "x".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[^A-Za-z0-9.+-]+", "-" if not re.fullmatch(r"\w+", text) else "_", text).strip("-") or "none"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep.

    Attributes:
        name: Name of its folder.
        settings: Its values of the grid, with the keys as given.
        recipe: Its complete recipe.
    """

    name: str
    settings: dict[str, Any]
    recipe: Recipe


def plan(
    recipe: str | Path | None,
    changes: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    *,
    skip_invalid: bool = False,
) -> list[PlannedRun]:
    """The runs of a grid, in order.

    Args:
        recipe: A recipe file; None for the default.
        changes: Settings of all runs, by their dotted keys.
        grid: Settings and the values to try; short keys such as `head`, `lr` and `head.OPTION` are allowed.
        skip_invalid: Leave out an option of the grid for heads that do not have it or do not use it, so that they run
            once and not once per value. By default that is an error.

    >>> [run.name for run in plan(None, {"epochs": 1}, {"head": ["gap", "hsq"], "seed": [0, 1]})]
    ['head-gap_seed-0', 'head-gap_seed-1', 'head-hsq_seed-0', 'head-hsq_seed-1']
    """

    check_grid(grid)
    runs: dict[str, PlannedRun] = {}
    for settings in combinations(grid):
        fitting = _fitting(recipe, changes, settings) if skip_invalid else dict(changes)
        useless = _useless(recipe, fitting, settings)
        if useless and not skip_invalid:
            key, reason = next(iter(useless.items()))
            raise LabelwiseError(
                f"{key!r} of the grid: {reason}; leave it out, or try it only where it counts",
                options={"skip_invalid": True},
            )
        kept = {key: value for key, value in settings.items() if key not in useless}
        planned = PlannedRun(run_name(kept), kept, load_recipe(recipe, _applied(fitting, kept)))
        check(planned.recipe)
        if not skip_invalid:
            check_options(planned.recipe, fitting)
        if runs.setdefault(planned.name, planned).settings != kept:
            raise LabelwiseError(
                f"two settings of the grid would share the folder {planned.name!r}; sweep them one after the other"
            )
    return list(runs.values())


def _applied(changes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**changes, **{full_key(key): value for key, value in settings.items()}}


def _fitting(recipe: str | Path | None, changes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of all runs without the options that this run's head does not have or does not use."""
    others = {key: value for key, value in settings.items() if not full_key(key).startswith("model.options")}
    plain = {key: value for key, value in changes.items() if not key.startswith("model.options")}
    model = load_recipe(recipe, _applied(plain, others)).model
    tried = {full_key(key).removeprefix(OPTION): value for key, value in settings.items() if key not in others}
    given = {key.removeprefix(OPTION): value for key, value in changes.items() if key.startswith(OPTION)}
    whole = changes.get("model.options", {})
    useless = useless_options(model, whole | given | tried)
    fitting = {key: value for key, value in changes.items() if key in plain or key.removeprefix(OPTION) not in useless}
    if whole:
        fitting["model.options"] = {option: value for option, value in whole.items() if option not in useless}
    return fitting


def _useless(recipe: str | Path | None, changes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings that the head does not have or does not use, each with the reason."""
    options = {full_key(key).removeprefix(OPTION): key for key in settings if full_key(key).startswith(OPTION)}
    others = {key: value for key, value in settings.items() if key not in options.values()}
    model = load_recipe(recipe, _applied(changes, others)).model
    found = useless_options(model, {option: settings[key] for option, key in options.items()})
    return {options[option]: reason for option, reason in found.items()}


def check_data(runs: Sequence[PlannedRun], out: Path, test_split: str | None) -> Path | None:
    """Open the data before anything runs; returns a manifest with splits if the data has none.

    Otherwise each training would split the data by its own seed, and no two seeds could be compared.
    """
    sources = {run.recipe.data.source for run in runs}
    if None in sources:
        raise LabelwiseError("say which data to train on", options={"data": "photos.csv"})
    for source in sources:
        table = open_data(str(source))
        if table.split_names == ("",):
            if len(sources) > 1:
                raise LabelwiseError(f"{source} has no splits; split it first, so that all runs use the same images")
            for name in () if test_split is None else test_split.split("+"):
                if name not in DEFAULT_FRACTIONS:
                    raise unknown_name("split", name, DEFAULT_FRACTIONS, str(source))
            if (out / SPLITS).exists():
                _check_same(table, out)
            else:
                out.mkdir(parents=True, exist_ok=True)
                write_manifest(split(table, DEFAULT_FRACTIONS, seed=0), out / SPLITS)
            return out / SPLITS
        if test_split is not None:
            table.wanted_splits(test_split, "test_split")  # raises, and lists the splits there are
    return None


def _check_same(table: LabelTable, out: Path) -> None:
    """Raise an error if the splits in this folder are of other images or labels."""
    if _content(open_data(out / SPLITS, check_files="no")) != _content(table):
        raise LabelwiseError(
            f"{str(out)!r} holds a sweep on other images or labels than those of {table.source}; choose another folder"
        )


def _content(table: LabelTable) -> dict[str, tuple[set[str], ...]]:
    """The names of the present and of the unknown labels of each image."""
    names = [tuple(map(set, row_names(table, row))) for row in range(len(table))]
    return dict(zip(map(os.path.realpath, table.images), names, strict=True))
