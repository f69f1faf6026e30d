"""The folder of a run: whether it may be written to, and by whom."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labelwise.errors import LabelwiseError
from labelwise.file_lock import lock

_RUN_FILES = (
    "model",
    "checkpoints",
    "metrics.jsonl",
    "log.txt",
    "split.csv",
    "tensorboard",
    "gates",
    "predictions",
    "recipe.yaml",
)


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
        if overwrite:
            for name in _RUN_FILES:  # recipe.yaml, which marks a run, goes last: an interrupted removal is still a run
                path = folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        yield


def _check(folder: Path, resume: bool, overwrite: bool) -> None:
    used = (folder / "recipe.yaml").exists()
    if resume and not used:
        raise LabelwiseError(f"there is no run in {str(folder)!r} to resume; start it without --resume")
    if used and not resume and not overwrite:
        raise LabelwiseError(
            f"{str(folder)!r} already holds a run; continue it with --resume, replace it with --overwrite, "
            "or choose another --out"
        )
