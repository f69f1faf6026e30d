"""ML-GCN (Chen et al., CVPR 2019): a graph network turns the labels' word vectors into their classifiers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import Head, as_tokens, checked_words
from labelwise.heads.folding import Known
from labelwise.heads.graph_configs import MlGcnConfig
from labelwise.heads.graphs import GraphNetwork, checked_cooccurrence, reweighted
from labelwise.heads.registry import register_head


@register_head(MlGcnConfig)
class MlGcnHead(Head):
    """Max pooling and linear classifiers W [N, C] that graph convolutions make from word vectors.

    Nothing in W depends on the image: an optimized head has W alone, and costs as much as average pooling and a linear
    layer. The authors' code normalizes eq. 8 by columns; here rows are normalized, as in the paper.
    """

    adjacency: Tensor | None  # [N, N], A' of eq. 8; None: folded into the classifiers

    def __init__(
        self,
        config: MlGcnConfig,
        in_features: int,
        labels: int,
        word_vectors: Tensor | None = None,
        cooccurrence: Tensor | None = None,
    ) -> None:
        super().__init__(config, in_features, labels)
        words = checked_words(word_vectors, labels, config.word_dim)
        probabilities = checked_cooccurrence(cooccurrence, labels)  # P, eq. 6
        edges = (probabilities >= config.edge_threshold).float()  # eq. 7
        self.register_buffer("word_vectors", words)
        self.register_buffer("adjacency", reweighted(edges, config.neighbour_weight))  # eq. 8
        self.graph: nn.Module = GraphNetwork(words.shape[1], *config.hidden, in_features)  # eq. 2

    def forward(self, x: Tensor) -> Tensor:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        pooled = tokens.amax(dim=1)  # eq. 3
        return F.linear(pooled, self.graph(self.word_vectors, self.adjacency))  # eq. 4

    def fold_constants(self, tokens: int) -> None:
        self.graph = Known(self.graph(self.word_vectors, self.adjacency))
        self.word_vectors = self.adjacency = None
