"""A linear layer with separate weights for every query, computed for all queries in one batched product."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PerQueryLinear(nn.Module):
    def __init__(self, queries: int, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        bound = in_features**-0.5  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(queries, in_features, out_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(queries, 1, out_features).uniform_(-bound, bound)) if bias else None

    def forward(self, x: Tensor) -> Tensor:  # [K, B, in] -> [K, B, out]
        return torch.bmm(x, self.weight) if self.bias is None else torch.baddbmm(self.bias, x, self.weight)


def per_query_mlp(
    queries: int, in_features: int, hidden: int | None, out_features: int, bias: bool = True
) -> nn.Module:
    """A linear layer per query, or with `hidden` an MLP per query with one hidden layer."""
    if hidden is None:
        return PerQueryLinear(queries, in_features, out_features, bias)
    return nn.Sequential(
        PerQueryLinear(queries, in_features, hidden), nn.ReLU(), PerQueryLinear(queries, hidden, out_features, bias)
    )
