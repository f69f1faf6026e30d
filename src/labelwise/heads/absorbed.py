"""Cross-attention for inference that leaves out projections of the tokens, where there are few queries and many tokens.

A key is W_k x + b_k, so head h's score of a token x is (W_k^T q) x plus a number that is the same for all tokens, which
softmax ignores: multiply the few queries with W_k, not the many tokens. Values likewise: the weights sum to 1, so
sum_t a_t (W_v x_t + b_v) = W_v (sum_t a_t x_t) + b_v. The price is that each of the heads now works with all D channels
instead of D / heads, which is why it does not always pay: `cheapest_reading` counts.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.attention import Attention
from labelwise.heads.details import Recorder

Reading = Literal["project", "absorb-keys", "absorb-both"]
# Multiply-adds of the absorbed forms run slower: softmax is outside the fused kernel, and products are cut by image or
# by head. Measured on one core, 43 G/s when projecting against 37 (queries known) and 25 to 37 (queries per image).
_SLOWER_FIXED, _SLOWER_PER_IMAGE = 1.15, 1.5


def cheapest_reading(queries: int, tokens: int, dim: int, heads: int, *, fixed: bool) -> Reading:
    """Whether to project the tokens to keys and values, or to absorb the projections; `fixed`: the same queries for
    all images, so that their products with W_k are known.

    >>> cheapest_reading(20, 196, 768, 8, fixed=True), cheapest_reading(100, 49, 768, 8, fixed=True)
    ('absorb-both', 'project')
    """
    # Multiply-adds for one image, without what all forms share (the query's and the output's projection).
    score, project_tokens, per_query = queries * tokens * dim, tokens * dim * dim, queries * dim * dim
    absorb = 0 if fixed else per_query
    slower = _SLOWER_FIXED if fixed else _SLOWER_PER_IMAGE
    costs: dict[Reading, float] = {
        "project": 2 * project_tokens + 2 * score,
        "absorb-keys": project_tokens + slower * (absorb + heads * score + score),
        "absorb-both": slower * (absorb + 2 * heads * score + per_query),
    }
    return min(costs, key=lambda reading: costs[reading])


class AbsorbedAttention(nn.Module):
    """What `Attention.read` computes, from the tokens as they are."""

    def __init__(self, attention: Attention, values: bool) -> None:
        """`values`: absorb W_v as well, not only W_k."""
        super().__init__()
        dim = attention.out_proj.in_features
        self.heads, self.values = attention.heads, values
        _, key, value = attention.in_proj_weight.detach().chunk(3)  # [D, D] each: rows are outputs
        _, _, bias = attention.in_proj_bias.detach().chunk(3)
        by_head = (self.heads, dim // self.heads)
        self.key_weight = _constant(
            key.unflatten(0, by_head) * by_head[1] ** -0.5
        )  # [heads, d, D], with softmax's scale
        self.value_weight = _constant(value.unflatten(0, by_head).transpose(1, 2) if values else value)
        self.value_bias = _constant(bias.view(self.heads, 1, -1) if values else bias)
        self.out_proj = attention.out_proj

    def absorb(self, q: Tensor) -> Tensor:
        """The queries' products with W_k: [B or 1, heads, K, d] -> [B or 1, heads * K, D]."""
        batch, _, queries, _ = q.shape
        by_head = torch.bmm(q.transpose(0, 1).flatten(1, 2), self.key_weight)  # [heads, B * K, D]
        out: Tensor = by_head.unflatten(1, (batch, queries)).transpose(0, 1).flatten(1, 2)
        return out

    def read(self, absorbed: Tensor, memory: Tensor, key_positions: Tensor | None, record: Recorder | None) -> Tensor:
        """`absorbed` [B or 1, heads * K, D] reads memory [B, T, D]."""
        keys = memory if key_positions is None else memory + key_positions
        if absorbed.shape[0] == 1:
            scores = F.linear(keys, absorbed[0]).transpose(1, 2)
        else:
            scores = torch.bmm(absorbed, keys.transpose(1, 2))
        weights = scores.softmax(dim=-1)  # [B, heads * K, T]
        if record is not None:
            record.attention.append(weights.unflatten(1, (self.heads, -1)))
        if self.values:
            tokens = torch.bmm(weights, memory).unflatten(1, (self.heads, -1)).transpose(0, 1)  # [heads, B, K, D]
            by_head = torch.baddbmm(self.value_bias, tokens.flatten(1, 2), self.value_weight)  # [heads, B * K, d]
            pooled = by_head.unflatten(1, tokens.shape[1:3]).permute(1, 2, 0, 3)  # [B, K, heads, d]
        else:
            v = F.linear(memory, self.value_weight, self.value_bias).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            pooled = (weights.unflatten(1, (self.heads, -1)) @ v).transpose(1, 2)
        out: Tensor = self.out_proj(pooled.flatten(2))
        return out  # [B, K, D]


def _constant(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.contiguous(), requires_grad=False)
