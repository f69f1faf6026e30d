"""One interface to all sources of word vectors: labels in, vectors out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from labelwise.errors import LabelwiseError, unknown_name
from labelwise.words.clip import ClipEncoder
from labelwise.words.config import WordsConfig
from labelwise.words.lookup import TableEncoder
from labelwise.words.sentence import SentenceEncoder
from labelwise.words.tables import MemoryTable, TextTable, glove_package, read_npy, read_safetensors


class Encoder(Protocol):
    def encode(self, texts: Sequence[str]) -> Tensor:
        """Texts -> vectors [T, d_w]."""


class WordSource:
    """Vectors of labels: every label's phrases, in every template, encoded and averaged."""

    def __init__(self, config: WordsConfig, encoder: Encoder) -> None:
        self.config, self.encoder = config, encoder

    def texts(self, label: str) -> list[str]:
        phrases = self.config.phrases.get(label, (label,))
        return [template.replace("{}", phrase) for template in self.config.templates for phrase in phrases]

    @torch.no_grad()
    def vectors(self, labels: Sequence[str]) -> Tensor:
        """[N, d_w], float32, one row for each label."""
        if not labels:
            raise LabelwiseError("there are no labels to find word vectors for")
        texts = [self.texts(label) for label in labels]
        encoded = self.encoder.encode([text for several in texts for text in several]).float()
        by_label = encoded.split([len(several) for several in texts])
        if not self.config.normalise:
            return torch.stack([vectors.mean(dim=0) for vectors in by_label])
        # Before the mean too: otherwise a phrase with a long vector would drown the others.
        return unit_mean_square(torch.stack([unit_mean_square(vectors).mean(dim=0) for vectors in by_label]))


def unit_mean_square(vectors: Tensor) -> Tensor:
    """Vectors [..., d] scaled to length sqrt(d): the direction stays, components are about 1.

    >>> unit_mean_square(torch.tensor([3.0, 4.0])).square().mean().item()
    1.0
    """
    return vectors / vectors.square().mean(dim=-1, keepdim=True).sqrt().clamp_min(1e-12)


def open_words(config: WordsConfig | str) -> WordSource:
    """The source that `config` names; a string is a source with nothing else to say about it."""
    if isinstance(config, str):
        config = WordsConfig(source=config)
    path = Path(config.source)
    # A file that has changed is read again; everything else is opened once, since encoders take seconds to load.
    return WordSource(config, _encoder(config.source, path.stat().st_mtime_ns if path.is_file() else None))


@lru_cache(maxsize=4)
def _encoder(source: str, changed: int | None) -> Encoder:
    kind, _, name = source.partition(":")
    if kind == "sentence":
        return SentenceEncoder(name)
    if kind == "clip":
        return ClipEncoder(name)
    if kind == "package":
        if name != "glove-50d":
            raise unknown_name("package of word vectors", name, ["glove-50d"])
        return TableEncoder(source, glove_package())
    if changed is None:
        raise LabelwiseError(
            f"no word vectors {source!r}: neither a file nor package:glove-50d, sentence:minilm, sentence:MODEL or "
            "clip:MODEL/PRETRAINED"
        )
    path = Path(source)
    readers = {".npy": read_npy, ".safetensors": read_safetensors}
    table: MemoryTable | TextTable = readers[path.suffix](path) if path.suffix in readers else TextTable(path)
    return TableEncoder(source, table)
