"""CSRA (Zhu & Wu, ICCV 2021): class-specific residual attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import Head, HeadDetails, as_tokens, on_grid
from labelwise.heads.builtin import CsraConfig
from labelwise.heads.registry import register_head

# Softmax temperatures of the residual attention's heads; infinity is max pooling (the authors write it as 99).
_TEMPERATURES: dict[int, tuple[float, ...]] = {
    1: (1,),
    2: (1, float("inf")),
    4: (1, 2, 4, float("inf")),
    6: (1, 2, 3, 4, 5, float("inf")),
    8: (1, 2, 3, 4, 5, 6, 7, float("inf")),
}


@register_head(CsraConfig)
class CsraHead(Head):
    """Average pooling plus lambda times label-specific attention pooling.

    Each head scores every position for every label with a cosine classifier and pools the scores by their own softmax
    at its temperature (eq. 2 to 6); the heads' logits are added up (section 3.5).
    """

    config: CsraConfig

    def __init__(self, config: CsraConfig, in_features: int, labels: int) -> None:
        super().__init__(config, in_features, labels)
        self.temperatures = _TEMPERATURES[config.residual_heads]
        self.normalized = False  # `fold_constants` normalizes the weights once
        bound = in_features**-0.5  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(len(self.temperatures), labels, in_features).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        logits = x.new_zeros(())
        for scores, temperature in zip(self._scores(x).unbind(dim=2), self.temperatures, strict=True):
            residual = (self._attention(scores, temperature) * scores).sum(dim=1)
            logits = logits + scores.mean(dim=1) + self.config.residual_weight * residual
        return logits

    def details(self, x: Tensor) -> HeadDetails:
        per_head = [
            on_grid(self._attention(scores, temperature).transpose(1, 2), x)
            for scores, temperature in zip(self._scores(x).unbind(dim=2), self.temperatures, strict=True)
        ]
        return HeadDetails(self(x), self.label_query, attention_layers=(torch.stack(per_head, dim=1),))

    def fold_constants(self, tokens: int) -> None:
        self.weight.copy_(self._directions())
        self.normalized = True

    def _scores(self, x: Tensor) -> Tensor:
        """Every head's score of every label at every position: [B, T, heads, N]."""
        tokens, _ = as_tokens(x, self.in_features)
        scores: Tensor = F.linear(tokens, self._directions().flatten(0, 1)).unflatten(-1, (-1, self.labels))
        return scores

    def _directions(self) -> Tensor:
        """The classifiers at length 1: [heads, N, C]."""
        return self.weight if self.normalized else F.normalize(self.weight, dim=2)

    @staticmethod
    def _attention(scores: Tensor, temperature: float) -> Tensor:
        """Where a head looks for each label: [B, T, N], sums to 1 over T."""
        if temperature == float("inf"):
            best = (scores == scores.amax(dim=1, keepdim=True)).to(scores.dtype)
            return best / best.sum(dim=1, keepdim=True)
        return (scores * temperature).softmax(dim=1)
