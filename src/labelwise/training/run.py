"""A run as it lies on disk: its config, recipe and training curve. No weights are read."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.core.errors import LabelwiseError
from labelwise.core.files import lock
from labelwise.data.sources import open_data
from labelwise.data.table import LabelTable
from labelwise.model.config import ModelConfig
from labelwise.model.folder import WEIGHTS, find_folder, read_config
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


_MARK = "recipe.yaml"  # a folder with it holds a run; it is written when nothing can be mistaken any more
_RUN_FILES = ("model", "checkpoints", "metrics.jsonl", "log.txt", "split.csv", "tensorboard", "gates", "predictions")
_ASIDE = ".replaced"  # where --overwrite keeps the old run meanwhile


@contextmanager
def run_folder(folder: Path, resume: bool, overwrite: bool) -> Iterator[None]:
    """`folder` is there, holds no other run and is ours alone: two trainings would spoil each other's checkpoints."""
    _check(folder, resume, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        try:
            lock(file, wait=False)
        except BlockingIOError:
            raise LabelwiseError(
                f"another process is training in {str(folder)!r}; wait for it, stop it, or choose another --out"
            ) from None
        _settle(folder)  # what a killed process left
        if overwrite and (folder / _MARK).exists():
            _set_aside(folder)
        try:
            yield
        finally:
            _settle(folder)


def _check(folder: Path, resume: bool, overwrite: bool) -> None:
    used = (folder / _MARK).exists() or (folder / _ASIDE / _MARK).exists()
    if resume and not used:
        raise LabelwiseError(f"there is no run in {str(folder)!r} to resume; start it without --resume")
    if used and not resume and not overwrite:
        raise LabelwiseError(
            f"{str(folder)!r} already holds a run; continue it with --resume, replace it with --overwrite, "
            "or choose another --out"
        )
    if not used and (folder / "model").exists():
        raise LabelwiseError(f"{str(folder / 'model')!r} is there and belongs to no run; choose another --out")


def _set_aside(folder: Path) -> None:
    """The mark goes first and comes back last: without it `_settle` knows that the old run is the one to keep."""
    (folder / _ASIDE).mkdir()
    for name in (_MARK, *_RUN_FILES):
        if (folder / name).exists():
            os.replace(folder / name, folder / _ASIDE / name)


def _settle(folder: Path) -> None:
    """Throw a replaced run away if the new one has begun; put it back if that never happened."""
    aside = folder / _ASIDE
    if not aside.is_dir():
        return
    if not (folder / _MARK).exists():
        for name in (*_RUN_FILES, _MARK):
            if (aside / name).exists():
                _remove(folder / name)
                os.replace(aside / name, folder / name)
    shutil.rmtree(aside)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def with_splits_of_run(table: LabelTable, *folders: Path | None) -> LabelTable:
    """Data without splits gets those that the training made of it: `split.csv` in the first run folder that has it."""
    made = next((folder / "split.csv" for folder in folders if folder and (folder / "split.csv").is_file()), None)
    if made is None or table.split_names != ("",):
        return table
    written = open_data(made, check_files="no")
    split_of = {os.path.realpath(image): split for image, split in zip(written.images, written.splits, strict=True)}
    return table.with_splits([split_of.get(os.path.realpath(image), "") for image in table.images])


FOLDER = "gates"  # of a run


def write_gates(run: Path, epoch: int, weights: NDArray[np.floating]) -> None:
    """Keep the mean gate weights [layers, K, n_t + n_s] after an epoch; a resumed run writes the same file again."""
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    np.save(folder / _name(epoch), weights.astype(np.float32), allow_pickle=False)


def read_gates(run: Path) -> list[tuple[int, NDArray[np.float32]]]:
    """What was kept after each finished epoch; empty for a head without gates, or trained without validation images.

    metrics.jsonl says which epochs are finished: a killed run may have gates of one that is not.
    """
    try:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines() if (run / FOLDER).is_dir() else []
        epochs = [int(json.loads(line)["epoch"]) for line in lines]
        return [(epoch, np.load(run / FOLDER / _name(epoch), allow_pickle=False)) for epoch in epochs]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise LabelwiseError(f"{str(run)!r}: the gates that its training recorded cannot be read ({error})") from None


def _name(epoch: int) -> str:
    return f"{epoch:04}.npy"
