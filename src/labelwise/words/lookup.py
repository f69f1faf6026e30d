"""From a label's name to vectors of words: names are written in many ways, tables know single lower-case words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import LabelwiseError
from labelwise.words.tables import Vector, WordTable

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
