"""What heads on a graph of the labels share: from statistics to an adjacency matrix, and graph convolutions.

Adjacency matrices are [N, N], with row i for what label i takes from the others: nodes H [N, d] become A H.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.core.errors import LabelwiseError

LEAK = 0.2  # of LeakyReLU between graph layers, as in the codes of ML-GCN, ADD-GCN, KSSNet and TDRG


def checked_cooccurrence(given: Tensor | None, labels: int) -> Tensor:
    """P(j | i), [N, N]: as given, or zeros, so that the adjacency has its shape until a state dict fills it."""
    if given is None:
        return torch.zeros(labels, labels)
    if given.shape != (labels, labels):
        raise LabelwiseError(f"cooccurrence must be {[labels, labels]}, not {list(given.shape)}")
    return given.detach().float()


def without_self(matrix: Tensor) -> Tensor:
    """[N, N] with a zero diagonal."""
    return matrix * (1 - torch.eye(len(matrix), device=matrix.device))


def reweighted(edges: Tensor, neighbour_weight: float) -> Tensor:
    """ML-GCN's eq. 8: a label's neighbours share the weight p, the label itself keeps 1 - p.

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
