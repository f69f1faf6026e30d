"""Fast0Tag (Zhang, Gong & Shah, CVPR 2016): an image becomes a direction along which its labels' words rank first."""

from __future__ import annotations

import itertools

from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import as_tokens
from labelwise.heads.registry import register_head
from labelwise.heads.word_configs import Fast0TagConfig
from labelwise.heads.word_head import LabelVectors, WordHead


@register_head(Fast0TagConfig)
class Fast0TagHead(WordHead):
    """Average pooling, a linear map (or a small network) into the space of word vectors, and the product with each
    label's. Meant for the loss `ranking`. Features and word vectors have length 1, as in the paper."""

    def __init__(
        self, config: Fast0TagConfig, in_features: int, labels: int, word_vectors: Tensor | None = None
    ) -> None:
        super().__init__(config, in_features, labels, word_vectors)
        widths = (in_features, *config.hidden, self.word_dim)
        layers = [nn.Linear(before, after) for before, after in itertools.pairwise(widths)]
        between = [part for layer in layers[:-1] for part in (layer, nn.ReLU(), nn.Dropout(config.dropout))]
        self.direction = nn.Sequential(*between, layers[-1])
        self.label_vectors = LabelVectors(widths[-1])

    def forward(self, x: Tensor) -> Tensor:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        direction = self.direction(F.normalize(tokens.mean(dim=1), dim=1))  # [B, d_w]
        return F.linear(direction, self.label_vectors(self.word_vectors))
