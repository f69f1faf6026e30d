"""The text tower of a CLIP model: its vectors were trained beside pictures."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from labelwise.errors import LabelwiseError, missing_extra

_BATCH = 64


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
