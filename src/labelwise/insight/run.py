"""A run as it lies on disk: its config, recipe and training curve. No weights are read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labelwise.errors import LabelwiseError
from labelwise.model_config import ModelConfig
from labelwise.model_folder import WEIGHTS, find_folder, read_config
from labelwise.training.recipe import Recipe, load_recipe


@dataclass(frozen=True)
class Run:
    name: str  # for people: the folder's name, with as much of the path as tells it from the other runs
    source: str  # what the user typed
    model: Path  # folder with the weights
    config: ModelConfig
    recipe: Recipe | None  # None: a model folder or a hub id, without the run it came from
    history: list[dict[str, Any]]  # one entry for each epoch

    @property
    def folder(self) -> Path | None:
        """The run folder; None for a model without one."""
        return self.model.parent if self.recipe is not None else None

    @property
    def frozen(self) -> bool:
        return self.recipe is not None and self.recipe.model.freeze == "backbone"

    @property
    def head(self) -> str:
        """The preset's name if a recipe tells it, else the kind of head."""
        return self.recipe.model.head if self.recipe is not None else self.config.head.kind


def open_runs(sources: Sequence[str | Path]) -> list[Run]:
    """Each run folder, model folder or hub id once, in order, with names that differ."""
    if not sources:
        raise LabelwiseError("name at least one run, for example: labelwise report runs/first")
    runs = [open_run(str(source)) for source in sources]
    seen: dict[Path, Run] = {}
    for run in runs:
        seen.setdefault(run.model.resolve(), run)
    named = short_names([_place(run) for run in seen.values()])
    return [replace(run, name=name) for run, name in zip(seen.values(), named, strict=True)]


def open_run(source: str) -> Run:
    model = find_folder(source)
    if not (model / WEIGHTS).is_file():
        raise LabelwiseError(f"{source!r} has no {WEIGHTS}: finish its training, or copy the whole model folder")
    recipe_file = model.parent / "recipe.yaml"
    recipe = load_recipe(recipe_file, {}) if model.name == "model" and recipe_file.is_file() else None
    history = [] if recipe is None else read_history(model.parent / "metrics.jsonl")
    return Run(source, source, model, read_config(model), recipe, history)


def read_history(path: Path) -> list[dict[str, Any]]:
    """The finished epochs; a last line that was cut off when the power failed does not count."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if isinstance(entry, dict) and isinstance(entry.get("epoch"), int):
            entries.append(entry)
    return entries


def short_names(paths: Sequence[str]) -> list[str]:
    """The last part of each path, or as many parts as it takes until all names differ.

    >>> short_names(["runs/hsq", "runs/gap"]), short_names(["a/seed-0/hsq", "a/seed-1/hsq", "gap"])
    (['hsq', 'gap'], ['seed-0/hsq', 'seed-1/hsq', 'gap'])
    """
    parts = [[part for part in path.replace("\\", "/").split("/") if part] or [path] for path in paths]
    lengths = [1] * len(parts)
    while True:
        names = ["/".join(part[-length:]) for part, length in zip(parts, lengths, strict=True)]
        twice = {name for name, times in Counter(names).items() if times > 1}
        longer = [n for n, name in enumerate(names) if name in twice and lengths[n] < len(parts[n])]
        if not longer:
            return names
        for n in longer:
            lengths[n] += 1


def _place(run: Run) -> str:
    return str(run.folder.resolve()) if run.folder is not None else run.source
