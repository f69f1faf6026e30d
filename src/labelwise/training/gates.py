"""How HSQ's gates change over a training: one small file for each epoch in the run folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.errors import LabelwiseError

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
