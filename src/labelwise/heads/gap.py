"""Global average pooling and a linear layer: the baseline."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from labelwise.heads.base import Head, HeadConfig, Probability, as_tokens
from labelwise.heads.registry import register_head


class GapConfig(HeadConfig):
    """Global average pooling and a linear layer: the baseline.

    Args:
        dropout: Before the linear layer.
    """

    kind: Literal["gap"] = "gap"
    dropout: Probability = 0.0


@register_head(GapConfig)
class GapHead(Head):
    """Average over the map, then a linear layer."""

    def __init__(self, config: GapConfig, in_features: int, labels: int) -> None:
        super().__init__(config, in_features, labels)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(in_features, labels)

    def forward(self, x: Tensor) -> Tensor:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        logits: Tensor = self.classifier(self.dropout(tokens.mean(dim=1)))
        return logits
