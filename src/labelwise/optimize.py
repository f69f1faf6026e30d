"""A model for inference: the same logits, faster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Self

import torch
from torch import Tensor, nn

from labelwise import heads
from labelwise.backbones.fold import fold_batch_norms
from labelwise.backbones.layers import put_channels_last
from labelwise.errors import LabelwiseError
from labelwise.model import LabelModel


class OptimizedModel(LabelModel):
    """Made by `LabelModel.optimize`. It predicts, explains and exports; it cannot be trained, saved or relabelled."""

    def __init__(self, model: LabelModel, *, compile: bool = False) -> None:
        nn.Module.__init__(self)  # LabelModel's own would build a new backbone
        self.config = model.config
        size = model.config.preprocessing.size
        device = next(model.parameters()).device
        example = torch.rand(2, 3, size, size, device=device)
        self.backbone = fold_batch_norms(model.backbone, example)
        with torch.no_grad():
            tokens = self.backbone(example).shape[2:].numel()
        self.head = heads.optimize(model.head, tokens)
        put_channels_last(self)
        self.requires_grad_(False)
        super().train(False)
        if compile:
            self.compile()

    def train(self, mode: bool = True) -> Self:
        if mode:
            self._refuse("trained")
        return super().train(False)

    def optimize(self, *, compile: bool = False) -> OptimizedModel:
        self._refuse("optimised again")

    def _save_pretrained(self, save_directory: Path) -> None:
        self._refuse("saved")

    def with_labels(self, labels: Sequence[str], word_vectors: Tensor | None = None) -> LabelModel:
        self._refuse("given other labels")

    def _refuse(self, what: str) -> NoReturn:
        raise LabelwiseError(f"an optimised model cannot be {what}: do that with the model that it was made from")
