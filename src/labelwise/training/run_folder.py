"""The folder of a run: whether it may be written to, and by whom. An old run goes only once the new one has begun."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labelwise.errors import LabelwiseError
from labelwise.file_lock import lock

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
