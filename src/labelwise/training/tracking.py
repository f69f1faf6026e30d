"""The run's curves for TensorBoard, where it is installed (extra `tracking`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any


def write_curves(folder: Path, history: list[dict[str, Any]]) -> None:
    """Scalars of every epoch, written anew as a whole: a resumed run leaves no double points."""
    if find_spec("tensorboard") is None:
        return
    from torch.utils.tensorboard import SummaryWriter

    for old in folder.glob("events.*"):
        old.unlink()
    with SummaryWriter(str(folder)) as writer:
        for row in history:
            for name, value in row.items():
                if name != "epoch" and value is not None:
                    writer.add_scalar(name, value, row["epoch"])
