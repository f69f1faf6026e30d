"""In which settings runs differ: seeds, sweeps over one setting, and what to show in a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labelwise.training.recipe import short_key
from labelwise.training.run import Run

# They change no result.
_NOT_SETTINGS = ("description", "data.on_bad_image", "workers", "checkpoint_minutes", "timeout_minutes", "strategy")
SEED = "seed"


def settings_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The recipe of each run with flat keys such as `model.options.dim`; without a recipe, what the config says.

    A head option that any run states is filled in for all, so that a default that is written out makes no difference.
    """
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
    """The settings that differ, the model's first and the seed last. Options that only one head has are left out.

    >>> differing([{"epochs": 5, "seed": 0, "model.head": "gap"}, {"epochs": 5, "seed": 1, "model.head": "hsq"}])
    ['model.head', 'seed']
    """
    keys = dict.fromkeys(key for one in settings for key in one)
    found = [key for key in keys if len({str(one.get(key)) for one in settings if key in one}) > 1]
    return sorted(found, key=lambda key: (not key.startswith("model."), key == SEED))


@dataclass(frozen=True)
class Line:
    """Runs that differ only in one numeric setting and in seeds: a curve."""

    name: str  # the other settings in which the lines differ
    points: dict[float, list[int]]  # value -> indices of the runs


def seed_groups(settings: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Groups of runs, as indices, that differ only in the seed; every run is in one group.

    >>> seed_groups([{"a": 1, "seed": 0}, {"a": 2, "seed": 0}, {"a": 1, "seed": 1}])
    [[0, 2], [1]]
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for index, one in enumerate(settings):
        groups[_identity(one, {SEED})].append(index)
    return list(groups.values())


def sweeps(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Line]]:
    """Numeric settings that were varied, each with its lines of two or more points.

    >>> runs = [{"model.size": size, "model.head": head} for head in ("q2l", "hsq") for size in (384, 576)]
    >>> sweeps(runs)["model.size"]
    [Line(name='q2l', points={384.0: [0], 576.0: [1]}), Line(name='hsq', points={384.0: [2], 576.0: [3]})]
    """
    found: dict[str, list[Line]] = {}
    for key in (key for key in differing(settings) if key != SEED):
        lines: dict[str, dict[float, list[int]]] = {}
        for index, one in enumerate(settings):
            value = one.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                lines.setdefault(_identity(one, {SEED, key}), {}).setdefault(float(value), []).append(index)
        long = {identity: dict(sorted(points.items())) for identity, points in lines.items() if len(points) > 1}
        if long:
            first = [settings[next(iter(points.values()))[0]] for points in long.values()]
            others = [other for other in differing(first) if other not in (key, SEED)]
            names = [", ".join(_described(other, one[other]) for other in others if other in one) for one in first]
            found[key] = [Line(name, points) for name, points in zip(names, long.values(), strict=True)]
    return found


def _described(key: str, value: Any) -> str:
    return str(value) if key in ("model.head", "model.backbone") else f"{short_key(key)} {value}"


def _identity(settings: Mapping[str, Any], without: set[str]) -> str:
    return str(sorted((key, str(value)) for key, value in settings.items() if key not in without))


def _flattened(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
