"""ML-GCN (Chen et al., CVPR 2019): a graph network turns the labels' word vectors into their classifiers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import as_tokens
from labelwise.heads.folding import Known
from labelwise.heads.graph_configs import MlGcnConfig
from labelwise.heads.graphs import GraphNetwork, LabelGraphHead, reweighted
from labelwise.heads.registry import register_head


@register_head(MlGcnConfig)
class MlGcnHead(LabelGraphHead):
    """Max pooling and linear classifiers W [N, C] that graph convolutions make from word vectors.

    Nothing in W depends on the image: an optimized head has W alone, and costs as much as average pooling and a linear
    layer. The authors' code normalizes eq. 8 by columns; here rows are normalized, as in the paper.
    """

    def build(self, config: MlGcnConfig, words: Tensor, cooccurrence: Tensor) -> None:
        edges = (cooccurrence >= config.edge_threshold).float()  # P of eq. 6 -> eq. 7
        self.register_buffer("adjacency", reweighted(edges, config.neighbour_weight))  # eq. 8
        self.graph: nn.Module = GraphNetwork(words.shape[1], *config.hidden, self.in_features)  # eq. 2

    def forward(self, x: Tensor) -> Tensor:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        pooled = tokens.amax(dim=1)  # eq. 3
        return F.linear(pooled, self.graph(self.word_vectors, self.adjacency))  # eq. 4

    def fold_constants(self, tokens: int) -> None:
        self.graph = Known(self.graph(self.word_vectors, self.adjacency))
        self.word_vectors = self.adjacency = None
