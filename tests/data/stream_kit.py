"""Samples whose image and labels follow from their number, written as shards or Parquet, and read back."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from labelwise.data.sources import open_images
from labelwise.data.stream_table import StreamTable

LABELS = ["cat", "dog", "cow"]


def png(number: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (8, 6), (number * 8, 0, 255)).save(data, "PNG")  # the decoder looks at the bytes, not at the name
    return data.getvalue()


def labels_of(number: int) -> list[str]:
    return [name for bit, name in enumerate(LABELS) if number >> bit & 1]


def target_of(number: int) -> list[int]:
    return [number >> bit & 1 for bit in range(3)]


def opened(data: object, **options: Any) -> StreamTable:
    table = open_images(str(data), **options)
    assert isinstance(table, StreamTable)
    return table


def check(table: StreamTable, expected: int = 23) -> None:
    """Every sample once, with its own image and labels, read in a random order."""
    assert len(table) == expected
    for row in np.random.default_rng(0).permutation(expected).tolist():
        name, content = table.image(row)
        assert (content, table.target(row).tolist()) == (png(row), target_of(row))
        assert name == table.images[row]
    assert table.targets().tolist() == [target_of(row) for row in range(expected)]


def write_tar(path: Path, files: dict[str, bytes | str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def numbered(numbers: range, labelled: bool = True) -> dict[str, bytes | str]:
    files: dict[str, bytes | str] = {}
    for number in numbers:
        files[f"{number:04d}.png"] = png(number)
        if labelled:
            files[f"{number:04d}.json"] = json.dumps(labels_of(number))
    return files


def rows(count: int = 23) -> dict[str, list[Any]]:
    return {
        "key": [f"{number:04d}" for number in range(count)],
        "image": [{"bytes": png(number), "path": None} for number in range(count)],
        "labels": [labels_of(number) for number in range(count)],
    }


def write_parquet(path: Path, columns: dict[str, list[Any]], row_group_size: int = 7) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    pyarrow.parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=row_group_size)
    return path
