"""The files of a training run, and how a new run takes the place of an old one.

Until the new run has a checkpoint, the old one can be restored; from then on, the new one can be resumed. Where a
replacement stands is told by names alone, so that a process may be killed between any two steps:

    .replaced/      some files of the old run: it is on its way out, or on its way back
    .replaced-run/  all of them; the files in the run folder are the new run's, which has no checkpoint yet

`recipe.yaml` marks a run. It is the first file to leave and the last one to come back.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labelwise.core.files import lock, remove_drafts

RECIPE, HISTORY, SPLITS, GATES, MODEL = "recipe.yaml", "metrics.jsonl", "split.csv", "gates", "model"
CHECKPOINTS, LOG, CURVES, REFIT = "checkpoints", "log.txt", "tensorboard", "refit"
HELD_OUT = "validation.safetensors"  # in `refit`: logits of the validation images before they were learned from
_OTHERS = (MODEL, CHECKPOINTS, REFIT, HISTORY, LOG, SPLITS, CURVES, GATES, "predictions")
_MOVING, _WHOLE = ".replaced", ".replaced-run"
_PATIENCE = 1.0  # seconds; setting a folder in order takes milliseconds
_ours: set[Path] = set()  # folders that this process has locked: closing another handle of the file would unlock them


def replacing(folder: Path) -> bool:
    """Whether a run in `folder` is being replaced, or was when its process ended."""
    return (folder / _MOVING).is_dir() or (folder / _WHOLE).is_dir()


def settle(folder: Path) -> None:
    """Set a folder in order that a killed process left: every command that opens a run does it first.

    Nothing happens while a training is running there, or where we must not write.
    """
    if replacing(folder) and folder.resolve() not in _ours:
        with suppress(OSError), locked(folder) as alone:
            if alone:
                restore(folder)


def run_candidates(source: str | Path) -> tuple[Path, Path]:
    """Where a run may lie that is named by its folder or by its model's, both in order."""
    path = Path(source)
    for folder in (path, path.parent):
        settle(folder)
    return path, path.parent


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Keep other processes from writing to a run folder; False where the system has no locks.

    Raises:
        BlockingIOError: Another process has the lock, and keeps it for longer than `settle` takes.
    """
    if folder.resolve() in _ours:  # a lock of this process would be granted once more, and released by the first to end
        raise BlockingIOError
    with (folder / ".lock").open("a") as file:
        last = time.monotonic() + _PATIENCE
        while True:
            try:
                alone = lock(file, wait=False)
                break
            except BlockingIOError:
                if time.monotonic() > last:
                    raise
                time.sleep(0.02)
        _ours.add(folder.resolve())
        try:
            yield alone
        finally:
            _ours.discard(folder.resolve())


def set_aside(folder: Path) -> None:
    """Make room for a new run; `restore` undoes it, `drop_replaced` makes it final."""
    if not (folder / RECIPE).exists():  # other files belong to no run
        return
    (folder / _MOVING).mkdir()
    for name in (RECIPE, *_OTHERS):
        if (folder / name).exists():
            os.replace(folder / name, folder / _MOVING / name)
    os.replace(folder / _MOVING, folder / _WHOLE)


def restore(folder: Path) -> None:
    """Bring the old run back, if there is one that no checkpoint has replaced yet; delete half-written files."""
    for place in (folder, folder / REFIT):
        remove_drafts(place)
        remove_drafts(place / CHECKPOINTS)
    if (folder / _WHOLE).is_dir():
        for name in (RECIPE, *_OTHERS):
            _remove(folder / name)
        os.replace(folder / _WHOLE, folder / _MOVING)
    if not (folder / _MOVING).is_dir():
        return
    if not (folder / RECIPE).exists():
        for name in (*_OTHERS, RECIPE):
            if (folder / _MOVING / name).exists():
                _remove(folder / name)
                os.replace(folder / _MOVING / name, folder / name)
    shutil.rmtree(folder / _MOVING)


def drop_replaced(folder: Path) -> None:
    """Delete the old run: the new one has a recipe and a checkpoint."""
    if (folder / _WHOLE).is_dir():
        os.replace(folder / _WHOLE, folder / _MOVING)  # next to a recipe, that name means: delete
        shutil.rmtree(folder / _MOVING)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
