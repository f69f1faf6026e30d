"""SDL (Ben-Cohen et al., ICCV 2021): an image becomes several directions in the space of words, not one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelwise.heads.base import LossTerms, as_tokens
from labelwise.heads.registry import register_head
from labelwise.heads.word_configs import SdlConfig
from labelwise.heads.word_head import LabelVectors, WordHead


@register_head(SdlConfig)
class SdlHead(WordHead):
    """Average pooling and a linear layer give the matrix A; a label's logit is the best match of its word, max(A v).

    Meant for the loss `ranking` with divide_by=present (L_rank). `loss_terms` makes images with diverse labels count
    more, and regularizes how much the rows of A differ: L = (1 - lambda) w_i L_rank + lambda L_reg.
    """

    config: SdlConfig

    def __init__(self, config: SdlConfig, in_features: int, labels: int, word_vectors: Tensor | None = None) -> None:
        super().__init__(config, in_features, labels, word_vectors)
        self.label_vectors = LabelVectors(self.word_dim)
        self.embedding = nn.Linear(in_features, config.directions * self.word_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        matrix = self.embedding(tokens.mean(dim=1)).unflatten(1, (self.config.directions, -1))  # A: [B, R, d_w]
        logits: Tensor = (matrix @ self.label_vectors(self.word_vectors).T).amax(dim=1)
        if not self.training:
            return logits
        # L_reg of each image as a further column, [B, N + 1]: the variance of A's rows, summed over word space.
        return torch.cat((logits, _variance(matrix)[:, None]), dim=1)

    def loss_terms(self, outputs: Tensor, targets: Tensor) -> LossTerms:
        if not self.training:
            return super().loss_terms(outputs, targets)
        logits, variance = outputs[:, :-1], outputs[:, -1].float()
        rank, regularizer = 1 - self.config.variance, self.config.variance
        weights = rank * (1 + self._diversity(targets) * self.config.diversity_weight)
        return LossTerms(logits, targets, weights, regularizer * variance.mean())

    def _diversity(self, targets: Tensor) -> Tensor:
        """The variance of the present labels' words, summed over word space: [B, N] -> [B]."""
        present = targets.clamp(min=0).to(self.relabelling_words().dtype)
        words = self.label_vectors(self.word_vectors)  # [N, d_w]
        count = present.sum(dim=1)
        spread = present @ words.square().sum(dim=1) - (present @ words).square().sum(dim=1) / count.clamp(min=1)
        diversity: Tensor = spread.clamp(min=0) / (count - 1).clamp(min=1)  # one label has no variance
        return diversity


def _variance(rows: Tensor) -> Tensor:
    """[B, R, d] -> [B]; 0 for one row."""
    differences = rows - rows.mean(dim=1, keepdim=True)
    return differences.square().sum(dim=(1, 2)) / max(1, rows.shape[1] - 1)
