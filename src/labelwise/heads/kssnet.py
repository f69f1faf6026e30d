"""KSSNet (Wang et al., AAAI 2020): a graph of what goes together in the data, superimposed on one of knowledge."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import as_tokens
from labelwise.heads.folding import Known
from labelwise.heads.graph_configs import KssnetConfig
from labelwise.heads.graphs import LEAK, GraphNetwork, LabelGraphHead, reweighted, without_self
from labelwise.heads.registry import register_head


@register_head(KssnetConfig)
class KssnetHead(LabelGraphHead):
    """Graph layers on the superimposed graph make label embeddings, which enter the features and classify them.

    What differs from the paper:
    - One lateral connection, at the backbone's last map. The paper has one after each stage of its network.
    - The knowledge graph is the similarity of word vectors; the paper's is ConceptNet. (ConceptNet Numberbatch, a file
      of word vectors, was trained on ConceptNet.)
    - Each graph layer has one matrix; the authors' code has a product of two narrow ones.
    As in that code, a linear classifier is added to the one that the graph makes.
    """

    def build(self, config: KssnetConfig, words: Tensor, cooccurrence: Tensor) -> None:
        in_features, labels = self.in_features, self.labels
        # To one device: words may come from a file when shapes are checked on meta.
        graph = superimposed(cooccurrence, words.to(cooccurrence), config)
        self.register_buffer("adjacency", reweighted(graph, config.neighbour_weight))
        self.label_side: nn.Module = LabelSide(words.shape[1], config.hidden, in_features, labels)
        self.lateral = nn.Linear(labels, in_features, bias=False)  # scores of labels back to channels
        self.bias = nn.Parameter(torch.zeros(labels))

    def forward(self, x: Tensor) -> Tensor:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        embeddings, classifiers = self.label_side(self.word_vectors, self.adjacency)  # [N, C] each
        aware = F.relu(tokens + self.lateral(F.linear(tokens, embeddings)))  # the lateral connection
        return F.linear(aware.mean(dim=1), classifiers, self.bias)

    def fold_constants(self, tokens: int) -> None:
        self.label_side = Known(self.label_side(self.word_vectors, self.adjacency))
        self.word_vectors = self.adjacency = None


def superimposed(cooccurrence: Tensor, words: Tensor, config: KssnetConfig) -> Tensor:
    """lambda A_K + (1 - lambda) A_S without its weakest edges: [N, N]. Each row of either graph adds up to 1."""
    directions = F.normalize(words, dim=1)
    knowledge, statistics = (
        F.normalize(without_self(edges), p=1, dim=1) for edges in ((directions @ directions.T).relu(), cooccurrence)
    )
    mixed = config.knowledge_weight * knowledge + (1 - config.knowledge_weight) * statistics
    return mixed * (mixed >= config.edge_threshold)


class LabelSide(nn.Module):
    """All that is computed from the labels alone: [2, N, C], embeddings for the lateral connection, and classifiers."""

    def __init__(self, word_dim: int, hidden: tuple[int, ...], channels: int, labels: int) -> None:
        super().__init__()
        self.embed = GraphNetwork(word_dim, *hidden, channels, bias=True)
        self.classify = GraphNetwork(channels, channels, bias=True)
        bound = channels**-0.5  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(labels, channels).uniform_(-bound, bound))

    def forward(self, words: Tensor, adjacency: Tensor) -> Tensor:
        embeddings = self.embed(words, adjacency)
        classifiers = self.classify(F.leaky_relu(embeddings, LEAK), adjacency).tanh() + self.weight
        return torch.stack((embeddings.tanh(), classifiers))
