"""From a grid to the list of runs, with every mistake found before the first one starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise.errors import LabelwiseError
from labelwise.heads.config import HeadConfig, QueryHeadConfig
from labelwise.heads.registry import option_parts, preset, with_options
from labelwise.sweep.grid import combinations, full_key, run_name
from labelwise.training.recipe import Recipe, load_recipe

_OPTION = "model.options."


@dataclass(frozen=True)
class PlannedRun:
    name: str  # of its folder
    settings: dict[str, Any]  # of the grid, keys as typed
    recipe: Recipe


def plan(
    recipe: str | Path | None,
    changes: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    *,
    skip_invalid: bool = False,
) -> list[PlannedRun]:
    """The runs of a grid on top of `recipe` with `changes`, in order.

    An option that a head does not know, or of the grid that changes nothing in it, is an error; with `skip_invalid` it
    is left out for that head, which then runs once and not once for each of the option's values.
    """
    from labelwise.training.run import check

    runs: dict[str, PlannedRun] = {}
    for settings in combinations(grid):
        fitting = _fitting(recipe, changes, settings) if skip_invalid else dict(changes)
        useless = _useless(recipe, fitting, settings)
        if useless and not skip_invalid:
            key, reason = next(iter(useless.items()))
            raise LabelwiseError(
                f"--grid {key}: {reason}. Leave it out, or add --skip-invalid to try it only where it counts"
            )
        kept = {key: value for key, value in settings.items() if key not in useless}
        planned = PlannedRun(run_name(kept), kept, load_recipe(recipe, _applied(fitting, kept)))
        check(planned.recipe)
        if runs.setdefault(planned.name, planned).settings != kept:
            raise LabelwiseError(
                f"two settings of the grid would share the folder {planned.name!r}; sweep them one after the other"
            )
    return list(runs.values())


def _applied(changes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**changes, **{full_key(key): value for key, value in settings.items()}}


def _fitting(recipe: str | Path | None, changes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is set for all runs, without the options that this run's head does not know."""
    plain = {key: value for key, value in changes.items() if not key.startswith("model.options")}
    others = {key: value for key, value in settings.items() if not full_key(key).startswith("model.options")}
    known = option_parts(preset(load_recipe(recipe, _applied(plain, others)).model.head))
    fitting = {key: value for key, value in changes.items() if key in plain or key.removeprefix(_OPTION) in known}
    if isinstance(whole := changes.get("model.options"), dict):
        fitting["model.options"] = {option: value for option, value in whole.items() if option in known}
    return fitting


def _useless(recipe: str | Path | None, changes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings that the head does not know or that change nothing in it, each with the reason."""
    options = {key: full_key(key).removeprefix(_OPTION) for key in settings if full_key(key).startswith(_OPTION)}
    others = {key: value for key, value in settings.items() if key not in options}
    base = load_recipe(recipe, _applied(changes, others)).model
    known = option_parts(preset(base.head))
    wanted = {option: settings[key] for key, option in options.items() if option in known}
    config = with_options(preset(base.head), base.options | wanted, f"head {base.head!r}")
    useless = {}
    for key, option in options.items():
        if option not in known:
            useless[key] = f"the head {base.head!r} has no option {option!r}"
        elif option in without_effect(config):
            useless[key] = f"{option!r} changes nothing in the head {base.head!r}, which has no such experts"
    return useless


def without_effect(config: HeadConfig) -> set[str]:
    """Options of experts that a query head does not have: it knows them all the same, so no typing error would show.

    >>> without_effect(preset("q2l")) - without_effect(preset("hsq-linear")) == {"widths", "activation"}
    True
    >>> without_effect(preset("hsq"))
    set()
    """
    if not isinstance(config, QueryHeadConfig) or config.experts.experts == "hybrid":
        return set()
    used = {"experts"} | ({"widths", "activation"} if config.experts.experts == "linear" else set())
    return set(type(config.experts).model_fields) - used
