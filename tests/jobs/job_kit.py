"""A tiny model, pictures, and what is in a job's folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import torch
from PIL import Image

from labelwise.model.model import create_model

LABELS = ("boat", "car", "hot dog", "sun")


def save_model(folder: Path, seed: int = 0) -> str:
    torch.manual_seed(seed)
    model = create_model("test_resnet", "hsq", LABELS, weights="none", size=32, dim=16)
    model.save(folder)
    return str(folder)


def save_pictures(folder: Path, count: int, side: int = 40) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    names = []
    for number in range(count):
        coarse = Image.fromarray(generator.integers(0, 255, (4, 4, 3), np.uint8))
        names.append(str(folder / f"{number:05d}.jpg"))
        coarse.resize((side, side), Image.Resampling.BICUBIC).save(names[-1], quality=80)
    return names


def rows(out: Path) -> list[dict[str, Any]]:
    """As any reader of Parquet folders sees it."""
    return pyarrow.parquet.read_table(out).to_pylist()  # type: ignore[no-any-return]


def contents(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(out.iterdir())}


def workers_of(driver: int, kind: bytes = b"MapWorker") -> list[int]:
    """Ray's processes of this kind that were started by the process `driver`, read from /proc."""
    parents, workers = dict[int, int](), list[int]()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(status[1])
            if kind in (folder / "cmdline").read_bytes():
                workers.append(int(folder.name))
        except OSError:  # it ended while we looked
            continue

    def is_ours(process: int) -> bool:
        while process in parents:
            if process == driver:
                return True
            process = parents[process]
        return False

    return sorted(worker for worker in workers if is_ours(worker))


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
