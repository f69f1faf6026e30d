"""Heads without queries: global average pooling, and class-specific residual attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import HeadDetails, as_tokens
from labelwise.heads.config import CsraConfig, GapConfig


class GapHead(nn.Module):
    """Average over the map, then a linear layer."""

    def __init__(self, config: GapConfig, in_features: int, labels: int) -> None:
        super().__init__()
        self.config, self.in_features, self.labels = config, in_features, labels
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(in_features, labels)

    def forward(self, x: Tensor) -> Tensor:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        logits: Tensor = self.classifier(self.dropout(tokens.mean(dim=1)))
        return logits

    def details(self, x: Tensor) -> HeadDetails:
        logits = self(x)
        return HeadDetails(logits, (), (), None, torch.arange(self.labels, device=x.device))


# Softmax temperatures of the residual attention's heads; infinity is max pooling (the authors write it as 99).
_TEMPERATURES: dict[int, tuple[float, ...]] = {
    1: (1,),
    2: (1, float("inf")),
    4: (1, 2, 4, float("inf")),
    6: (1, 2, 3, 4, 5, float("inf")),
    8: (1, 2, 3, 4, 5, 6, 7, float("inf")),
}


class CsraHead(nn.Module):
    """Residual attention (Zhu & Wu, ICCV 2021): average pooling plus lambda times label-specific attention pooling.

    Each head scores every place for every label with a cosine classifier and pools the scores by their own softmax at
    its temperature (eq. 2 to 6); the heads' logits are added up (section 3.5).
    """

    def __init__(self, config: CsraConfig, in_features: int, labels: int) -> None:
        super().__init__()
        self.config, self.in_features, self.labels = config, in_features, labels
        self.temperatures = _TEMPERATURES[config.residual_heads]
        self.normalized = False  # `heads.optimize` does it once and for all
        bound = in_features**-0.5  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(len(self.temperatures), labels, in_features).uniform_(-bound, bound))

    def _scores(self, x: Tensor) -> Tensor:
        """Every head's score of every label at every place: [B, T, heads, N]."""
        tokens, _ = as_tokens(x, self.in_features)
        scores: Tensor = F.linear(tokens, self.directions().flatten(0, 1)).unflatten(-1, (-1, self.labels))
        return scores

    def directions(self) -> Tensor:
        """The classifiers at length 1: [heads, N, C]."""
        return self.weight if self.normalized else F.normalize(self.weight, dim=2)

    @staticmethod
    def _places(scores: Tensor, temperature: float) -> Tensor:
        """Where a head looks for each label: [B, T, N], sums to 1 over T."""
        if temperature == float("inf"):
            best = (scores == scores.amax(dim=1, keepdim=True)).to(scores.dtype)
            return best / best.sum(dim=1, keepdim=True)
        return (scores * temperature).softmax(dim=1)

    def forward(self, x: Tensor) -> Tensor:
        logits = x.new_zeros(())
        for scores, temperature in zip(self._scores(x).unbind(dim=2), self.temperatures, strict=True):
            residual = (self._places(scores, temperature) * scores).sum(dim=1)
            logits = logits + scores.mean(dim=1) + self.config.residual_weight * residual
        return logits

    def details(self, x: Tensor) -> HeadDetails:
        height, width = x.shape[2:] if x.dim() == 4 else (1, x.shape[1])
        per_head = [
            self._places(scores, temperature).transpose(1, 2).unflatten(-1, (height, width))
            for scores, temperature in zip(self._scores(x).unbind(dim=2), self.temperatures, strict=True)
        ]
        labels = torch.arange(self.labels, device=x.device)
        return HeadDetails(self(x), (torch.stack(per_head, dim=1),), (), None, labels)
