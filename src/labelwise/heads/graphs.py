"""What heads on a graph of the labels share: from statistics to an adjacency matrix, and graph convolutions.

Adjacency matrices are [N, N], with row i for what label i takes from the others: nodes H [N, d] become A H.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.core.errors import LabelwiseError
from labelwise.heads.base import Head, checked_words, has_values
from labelwise.heads.graph_configs import LabelGraphConfig

LEAK = 0.2  # of LeakyReLU between graph layers, as in the codes of ML-GCN, ADD-GCN, KSSNet and TDRG


class LabelGraphHead(Head):
    """A head that `build` makes from the labels' word vectors [N, d_w] and their co-occurrence P(j | i) [N, N].

    Either is zeros if it is missing, so that all has its shape until a state dict fills it.
    """

    adjacency: Tensor | None  # [N, N], what the head makes of P; None: folded

    def __init__(
        self,
        config: LabelGraphConfig,
        in_features: int,
        labels: int,
        word_vectors: Tensor | None = None,
        cooccurrence: Tensor | None = None,
    ) -> None:
        super().__init__(config, in_features, labels)
        words = checked_words(word_vectors, labels, config.word_dim)
        self.register_buffer("word_vectors", words)
        self.build(config, words, checked_cooccurrence(cooccurrence, labels))

    def build(self, config: Any, words: Tensor, cooccurrence: Tensor) -> None:
        """The head's parts; `config` is of its own class."""
        raise NotImplementedError


def checked_cooccurrence(given: Tensor | None, labels: int) -> Tensor:
    """P(j | i), [N, N]: as given, or zeros, so that the adjacency has its shape until a state dict fills it."""
    if given is None:
        return torch.zeros(labels, labels)
    if given.shape != (labels, labels):
        raise LabelwiseError(f"cooccurrence must be {[labels, labels]}, not {list(given.shape)}")
    if has_values(given) and not ((given >= 0) & (given <= 1 + 1e-6)).all():  # rounding
        raise LabelwiseError("cooccurrence holds shares of images, from 0 to 1; some values here are not")
    return given.detach().float()


def without_self(matrix: Tensor) -> Tensor:
    """[N, N] with a zero diagonal."""
    return matrix * (1 - torch.eye(len(matrix), device=matrix.device))


def reweighted(edges: Tensor, neighbour_weight: float) -> Tensor:
    """ML-GCN's eq. 8, as its authors corrected it: a label's neighbours share the weight p, the label keeps 1 - p.

    `edges` [N, N] are not negative. Normalized as D^-1/2 A D^-1/2, which changes labels without neighbours only: they
    keep all of themselves.

    >>> reweighted(torch.tensor([[0.0, 1, 1], [0, 0, 0], [1, 0, 0]]), neighbour_weight=0.2)
    tensor([[0.8000, 0.1118, 0.1000],
            [0.0000, 1.0000, 0.0000],
            [0.2000, 0.0000, 0.8000]])
    """
    others = without_self(edges)
    shares = neighbour_weight * others / others.sum(dim=1, keepdim=True).clamp(min=1e-6)
    adjacency = shares + (1 - neighbour_weight) * torch.eye(len(edges), device=edges.device)
    scale = adjacency.sum(dim=1).rsqrt()
    return scale[:, None] * adjacency * scale


class GraphNetwork(nn.Module):
    """Graph convolutions H' = h(A H W), with LeakyReLU between them and nothing after the last (Kipf & Welling)."""

    def __init__(self, *widths: int, bias: bool = False) -> None:
        """`widths`: of the input, then of each layer's output."""
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, o, bias=bias) for i, o in itertools.pairwise(widths))
        for parameter in self.parameters():
            bound = parameter.shape[0] ** -0.5  # by the outputs, as in ML-GCN's code: classifiers start small
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:  # [N, d_in], [N, N] -> [N, d_out]
        for number, layer in enumerate(self.layers):
            nodes = adjacency @ layer(nodes if number == 0 else F.leaky_relu(nodes, LEAK))
        return nodes


class LabelNodes(nn.Module):
    """Every label's vector: the projected tokens, summed by its mask (ADD-GCN's v_c = sum_i m_ci x'_i)."""

    def __init__(self, in_features: int, dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(in_features, dim)
        self.mask_first = False  # N masked sums are projected instead of T tokens: the same, and cheaper if N < T

    def forward(self, masks: Tensor, tokens: Tensor) -> Tensor:  # [B, N, T], [B, T, C] -> [B, N, D]
        if not self.mask_first:
            nodes: Tensor = masks @ self.project(tokens)
            return nodes
        summed = F.linear(masks @ tokens, self.project.weight)
        return summed + masks.sum(dim=2, keepdim=True) * self.project.bias

    def choose_order(self, tokens: int, labels: int) -> None:
        """The order with fewer multiply-adds: project, then sum; or sum, then project."""
        channels, dim = self.project.in_features, self.project.out_features
        self.mask_first = labels * channels * (tokens + dim) < tokens * dim * (channels + labels)


class DynamicGraph(nn.Module):
    """An adjacency matrix for each image (ADD-GCN): A = sigmoid(W_A [h_c; g]), g made from a global vector."""

    def __init__(self, dim: int, global_dim: int, labels: int) -> None:
        super().__init__()
        self.project = nn.Linear(global_dim, global_dim)
        self.from_nodes = nn.Linear(dim, labels)  # W_A's half for h_c
        self.from_global = nn.Linear(global_dim, labels, bias=False)  # the half for g: the same for all nodes

    def forward(self, nodes: Tensor, pooled: Tensor) -> Tensor:  # [B, N, D], [B, D_g] -> [B, N, N]
        overall = self.from_global(F.leaky_relu(self.project(pooled), LEAK))
        return torch.sigmoid(self.from_nodes(nodes) + overall[:, None])


class LabelClassifier(nn.Module):
    """A linear classifier for each label, which reads that label's vector alone."""

    def __init__(self, labels: int, dim: int) -> None:
        super().__init__()
        bound = dim**-0.5  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(labels, dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(labels))

    def forward(self, x: Tensor) -> Tensor:  # [B, N, D] -> [B, N]
        return (x * self.weight).sum(dim=2) + self.bias
