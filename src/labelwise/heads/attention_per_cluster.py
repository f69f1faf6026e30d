"""One attention per cluster of labels: a baseline of LESA's paper (Huynh & Elhamifar, CVPR 2020, table 1)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from labelwise.heads.lesa import SharedAttentionHead
from labelwise.heads.registry import register_head
from labelwise.heads.word_configs import AttentionPerClusterConfig


@register_head(AttentionPerClusterConfig)
class AttentionPerClusterHead(SharedAttentionHead):
    """A label's word says which attention it selects: that of the nearest cluster of seen labels' words.

    The paper does not say how the labels are clustered: here by k-means on word vectors of length 1.
    """

    config: AttentionPerClusterConfig
    centres: Tensor  # [M, d_w], of the seen labels; a new label goes to the nearest

    def __init__(
        self, config: AttentionPerClusterConfig, in_features: int, labels: int, word_vectors: Tensor | None = None
    ) -> None:
        super().__init__(config, in_features, labels, word_vectors)
        self.register_buffer("centres", cluster_centres(self.relabelling_words(), config.attentions))
        self.register_buffer("clusters", None)  # [N]; `fold_constants` computes it once

    def selection(self, scores: Tensor) -> Tensor:
        clusters = self.clusters
        if clusters is None:
            clusters = nearest(F.normalize(self.relabelling_words(), dim=1), self.centres)
        return clusters.expand(scores.shape[0], -1)

    def fold_constants(self, tokens: int) -> None:
        self.clusters = self.selection(self.centres[None])[0].clone()
        super().fold_constants(tokens)


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each point: [N, d], [M, d] -> [N]."""
    return (F.linear(points, centres) - centres.square().sum(dim=1) / 2).argmax(dim=1)


def cluster_centres(words: Tensor, number: int, rounds: int = 20) -> Tensor:
    """K-means of word vectors at length 1, from centres that are far apart: [N, d_w] -> [number, d_w].

    >>> words = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.0]])
    >>> nearest(words, cluster_centres(words, 2)).tolist()
    [0, 0, 1]
    """
    words = F.normalize(words, dim=1)
    centres = words[:1]
    for _ in range(number - 1):
        farthest = torch.cdist(words, centres).amin(dim=1).argmax(keepdim=True)
        centres = torch.cat((centres, words.index_select(0, farthest)))
    for _ in range(rounds):
        members = F.one_hot(nearest(words, centres), number).to(words.dtype)  # [N, M]
        sizes = members.sum(dim=0)[:, None]
        centres = torch.where(sizes > 0, members.T @ words / sizes.clamp(min=1), centres)
    return centres
