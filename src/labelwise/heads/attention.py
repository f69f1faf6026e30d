"""Multi-head attention with the parameters of `nn.MultiheadAttention`: same names and shapes, so weights can move."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.errors import LabelwiseError
from labelwise.heads.details import Recorder
from labelwise.heads.dropout import dropout


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        if dim % heads:
            raise LabelwiseError(f"dim={dim} is not divisible by attention_heads={heads}; change one of them")
        self.heads = heads
        self.dropout = dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * dim, dim))  # query, key, value
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * dim))
        self.out_proj = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self, query: Tensor, memory: Tensor, key_positions: Tensor | None = None, record: Recorder | None = None
    ) -> Tensor:
        """query [B or 1, K, D] reads memory [B, T, D]. A query that is the same for all images is projected once."""
        return self.read(self.project_query(query), memory, key_positions, record)

    def project_query(self, query: Tensor) -> Tensor:  # [B or 1, K, D] -> [B or 1, heads, K, D / heads]
        dim = query.shape[-1]
        return self._split(F.linear(query, self.in_proj_weight[:dim], self.in_proj_bias[:dim]))

    def read(self, q: Tensor, memory: Tensor, key_positions: Tensor | None, record: Recorder | None) -> Tensor:
        """`forward` from the projected query on."""
        dim = memory.shape[-1]
        if key_positions is None:
            # keys and values are projections of the same tokens: one product instead of two
            k, v = F.linear(memory, self.in_proj_weight[dim:], self.in_proj_bias[dim:]).chunk(2, dim=-1)
        else:
            k = F.linear(memory + key_positions, self.in_proj_weight[dim : 2 * dim], self.in_proj_bias[dim : 2 * dim])
            v = F.linear(memory, self.in_proj_weight[2 * dim :], self.in_proj_bias[2 * dim :])
        k, v = self._split(k), self._split(v)  # [B, heads, T, D / heads]
        q = q.expand(k.shape[0], -1, -1, -1)
        drops = self.training and self.dropout > 0
        if record is None and not (drops and q.device.type == "cpu"):
            pooled = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if drops else 0.0)
        else:  # written out where the weights are asked for, or where there is no fused kernel with dropout
            weights = ((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)).softmax(dim=-1)  # [B, heads, K, T]
            if record is not None:
                record.attention.append(weights)
            pooled = (dropout(weights, self.dropout) if drops else weights) @ v
        out: Tensor = self.out_proj(pooled.transpose(1, 2).flatten(2))
        return out  # [B, K, D]

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
