"""What runs have in common and where they differ: seeds, sweeps over one setting, and what to show in a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labelwise.training.recipe import short_key
from labelwise.training.run import Run

_NOT_SETTINGS = ("description", "data.on_bad_image", "workers", "checkpoint_minutes", "strategy")  # change no result
SEED = "seed"


def settings_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Each run's recipe as one flat list, `model.options.dim` and so on; of a model without a recipe, what its config
    says. A head option that any of the runs states is filled in for all: a default written out is no difference."""
    stated = dict.fromkeys(name for run in runs if run.recipe for name in run.recipe.model.options)
    return [_settings(run) | _head_options(run, stated) for run in runs]


def _settings(run: Run) -> dict[str, Any]:
    seen = {"model.backbone": run.config.backbone.name, "model.head": run.head}
    if run.recipe is not None:
        recipe = run.recipe.model_dump(mode="json")
        recipe["model"].pop("options")
        seen = {key: value for key, value in _flattened(recipe, "") if key not in _NOT_SETTINGS}
    return seen | {"model.size": run.config.preprocessing.size}


def _head_options(run: Run, names: Iterable[str]) -> dict[str, Any]:
    values = run.config.head.model_dump(mode="json")
    parts = run.config.head.option_parts()
    known = {name: parts[name] for name in names if name in parts}
    return {
        f"model.options.{name}": values[name] if part is None else values[part][name] for name, part in known.items()
    }


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that are not the same everywhere, the most telling ones first; options that only one head has
    follow from the head and are left out.

    >>> differing([{"epochs": 5, "seed": 0, "model.head": "gap"}, {"epochs": 5, "seed": 1, "model.head": "hsq"}])
    ['model.head', 'seed']
    """
    keys = dict.fromkeys(key for one in settings for key in one)
    found = [key for key in keys if len({str(one.get(key)) for one in settings if key in one}) > 1]
    return sorted(found, key=lambda key: (not key.startswith("model."), key == SEED))


@dataclass(frozen=True)
class Line:
    """Runs that differ in one numeric setting only (and in seeds): a curve."""

    name: str  # what the other settings are, where lines differ in them
    points: dict[float, list[int]]  # value -> runs (places in the list)


def seed_groups(settings: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Runs that differ in nothing but the seed, as places in the list; every run is in one group.

    >>> seed_groups([{"a": 1, "seed": 0}, {"a": 2, "seed": 0}, {"a": 1, "seed": 1}])
    [[0, 2], [1]]
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(settings):
        groups[_identity(one, {SEED})].append(place)
    return list(groups.values())


def sweeps(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Line]]:
    """Numeric settings that were swept, each with its lines of two points and more.

    >>> runs = [{"model.size": size, "model.head": head} for head in ("q2l", "hsq") for size in (384, 576)]
    >>> sweeps(runs)["model.size"]
    [Line(name='q2l', points={384.0: [0], 576.0: [1]}), Line(name='hsq', points={384.0: [2], 576.0: [3]})]
    """
    found: dict[str, list[Line]] = {}
    for key in (key for key in differing(settings) if key != SEED):
        lines: dict[str, dict[float, list[int]]] = {}
        for place, one in enumerate(settings):
            value = one.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                lines.setdefault(_identity(one, {SEED, key}), {}).setdefault(float(value), []).append(place)
        long = {identity: dict(sorted(points.items())) for identity, points in lines.items() if len(points) > 1}
        if long:
            first = [settings[next(iter(points.values()))[0]] for points in long.values()]
            others = [other for other in differing(first) if other not in (key, SEED)]
            names = [", ".join(_said(other, one[other]) for other in others if other in one) for one in first]
            found[key] = [Line(name, points) for name, points in zip(names, long.values(), strict=True)]
    return found


def _said(key: str, value: Any) -> str:
    return str(value) if key in ("model.head", "model.backbone") else f"{short_key(key)} {value}"


def _identity(settings: Mapping[str, Any], without: set[str]) -> str:
    return str(sorted((key, str(value)) for key, value in settings.items() if key not in without))


def _flattened(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
