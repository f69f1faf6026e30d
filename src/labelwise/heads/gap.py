"""Global average pooling and a linear layer: the baseline."""

from __future__ import annotations

from torch import Tensor, nn

from labelwise.heads.base import Head, as_tokens
from labelwise.heads.builtin import GapConfig
from labelwise.heads.registry import register_head


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
