"""Linear layers whose weights are made from the query's own vector: HSQ for labels that training never saw (ours)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class QueryMade(nn.Module):
    """A layer that is called with the vectors and with the queries whose weights it makes."""


class QueryMadeLinear(QueryMade):
    """y = V (s * (U x)) + B q, with s = S q + 1: query q's weight matrix is V diag(s) U, of a chosen rank.

    As in ML-Decoder's eq. 6 the part that is learned is shared by all labels and the label's vector picks its own from
    it; the matrices of the labels are never written out. With s = 1 it is the same layer for all labels, and the words
    bend it.
    """

    def __init__(self, dim: int, in_features: int, out_features: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(in_features, rank, bias=False)  # U
        self.scale = nn.Linear(dim, rank)  # S
        self.up = nn.Linear(rank, out_features)  # V
        self.shift = nn.Linear(dim, out_features, bias=False)  # B
        nn.init.ones_(self.scale.bias)

    def forward(self, x: Tensor, queries: Tensor) -> Tensor:  # [K, B, in], [K, D] -> [K, B, out]
        mixed = self.down(x) * self.scale(queries)[:, None]
        out: Tensor = self.up(mixed) + self.shift(queries)[:, None]
        return out


class QueryMadeMlp(QueryMade):
    """One hidden layer, both matrices made from the query."""

    def __init__(self, dim: int, in_features: int, hidden: int, out_features: int, rank: int) -> None:
        super().__init__()
        self.first = QueryMadeLinear(dim, in_features, hidden, rank)
        self.last = QueryMadeLinear(dim, hidden, out_features, rank)

    def forward(self, x: Tensor, queries: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.first(x, queries)), queries)
        return out


class QueryMadeBank(QueryMade):
    """Every query's own linear experts, made from it: see `expert_banks`."""

    def __init__(self, dim: int, experts: int, in_features: int, out_features: int, rank: int) -> None:
        super().__init__()
        self.experts = experts
        self.linear = QueryMadeLinear(dim, in_features, experts * out_features, rank)

    def forward(self, x: Tensor, queries: Tensor) -> Tensor:  # [K, B, in], [K, D] -> [K, B, experts, out]
        out: Tensor = self.linear(x, queries).unflatten(-1, (self.experts, -1))
        return out
