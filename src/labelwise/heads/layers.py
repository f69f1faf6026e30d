"""Layers of a query head: transformer layers, and linear layers with weights of their own for every query.

Transformer layers are post-norm, with parameters named as in `nn.TransformerEncoderLayer` and
`nn.TransformerDecoderLayer`. Both take DETR's positions as options: they are added to the query and key side of an
attention, never to the values or to the residual.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.core.errors import LabelwiseError
from labelwise.heads.base import Recorder


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero with probability p (to 1/65536), everything else divided by 1 - p; uses torch's global generator.

    >>> torch.manual_seed(0).initial_seed(), sorted(set(dropout(torch.ones(1000), 0.2).tolist()))
    (0, [0.0, 1.25])
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    # PyTorch draws 64 random bits for every element of a mask; 16 are enough, so one draw serves four.
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = bits.view(torch.int16)[: x.numel()] >= round(p * 2**16) - 2**15
    # As bytes, which PyTorch converts faster than booleans.
    return x * kept.view(torch.uint8).to(x.dtype).mul_(1 / (1 - p)).view(x.shape)


def softmax(x: Tensor) -> Tensor:
    """Over the last dimension. Of 16-bit floats in float32: more exact, and on a CPU faster for rows of 24."""
    return x.float().softmax(dim=-1).to(x.dtype) if x.element_size() == 2 else x.softmax(dim=-1)


class Dropout(nn.Dropout):
    """`nn.Dropout`, faster on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training and self.p else input


class Attention(nn.Module):
    """`nn.MultiheadAttention` whose weights can be recorded and whose query side can be computed in advance."""

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
        """Query [B or 1, K, D] and memory [B, T, D] -> [B, K, D]. A query shared by all images is projected once."""
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
        return self.attend(q, self._split(k), self._split(v), record)

    def project(self, x: Tensor) -> Tensor:
        """Query, key and value of every token, [..., D] -> [..., 3 D]; `split` cuts them apart."""
        return F.linear(x, self.in_proj_weight, self.in_proj_bias)

    def split(self, projected: Tensor) -> tuple[Tensor, ...]:  # [B, T, 3 D] -> three of [B, heads, T, D / heads]
        return tuple(self._split(part) for part in projected.chunk(3, dim=-1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, record: Recorder | None = None) -> Tensor:
        """Queries [B or 1, heads, K, D / heads], keys and values [B, heads, T, D / heads] -> [B, K, D]."""
        q = q.expand(k.shape[0], -1, -1, -1)
        drops = self.training and self.dropout > 0
        if record is None and not (drops and q.device.type == "cpu"):
            pooled = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if drops else 0.0)
        else:  # written out if the weights are asked for, or if there is no fused kernel with dropout
            weights = softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2))  # [B, heads, K, T]
            if record is not None:
                record.attention.append(weights)
            pooled = (dropout(weights, self.dropout) if drops else weights) @ v
        out: Tensor = self.out_proj(pooled.transpose(1, 2).flatten(2))
        return out  # [B, K, D]

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, dim: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = Attention(dim, heads, dropout)
        self.linear1 = nn.Linear(dim, feedforward)
        self.linear2 = nn.Linear(feedforward, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:  # [B, T, D]
        query = x if positions is None else x + positions
        return self.after_attention(x, self.self_attn(query, x, positions))

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """The tokens' residual, then the feed-forward block: [B, T, D]."""
        x = self.norm1(x + self.dropout(attended))
        hidden = self.dropout(F.relu(self.linear1(x)))
        out: Tensor = self.norm2(x + self.dropout(self.linear2(hidden)))
        return out


class DecoderLayer(nn.Module):
    """First block (see `DecoderConfig`), cross-attention and feed-forward."""

    def __init__(self, dim: int, heads: int, feedforward: int, dropout: float, first_block: str) -> None:
        super().__init__()
        if first_block == "self-attention":
            self.self_attn = Attention(dim, heads, dropout)
        if first_block != "none":
            self.norm1 = nn.LayerNorm(dim)
        self.first_block = first_block
        self.multihead_attn = Attention(dim, heads, dropout)
        self.linear1 = nn.Linear(dim, feedforward)
        self.linear2 = nn.Linear(feedforward, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.norm3 = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,  # [B or 1, K, D]
        memory: Tensor,  # [B, T, D]
        query_positions: Tensor | None = None,  # [1, K, D]
        key_positions: Tensor | None = None,  # [1, T, D]
        record: Recorder | None = None,
    ) -> Tensor:
        x, query = self.before_reading(x, query_positions)
        return self.after_reading(x + self.dropout(self.multihead_attn(query, memory, key_positions, record)))

    def before_reading(self, x: Tensor, query_positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """The first block: the residual stream and the query that will read the tokens."""
        if self.first_block == "self-attention":
            query = x if query_positions is None else x + query_positions
            x = self.norm1(x + self.dropout(self.self_attn(query, x, query_positions)))
        elif self.first_block == "identity":
            x = self.norm1(x + self.dropout(x))
        return x, x if query_positions is None else x + query_positions

    def after_reading(self, x: Tensor) -> Tensor:  # [B, K, D]
        x = self.norm2(x)
        hidden = self.dropout(F.relu(self.linear1(x)))
        out: Tensor = self.norm3(x + self.dropout(self.linear2(hidden)))
        return out


def mlp(in_features: int, hidden: int | None, out_features: int, bias: bool = True) -> nn.Module:
    """A linear layer, or with `hidden` an MLP with one hidden layer."""
    if hidden is None:
        return nn.Linear(in_features, out_features, bias)
    return nn.Sequential(nn.Linear(in_features, hidden), nn.ReLU(), nn.Linear(hidden, out_features, bias))


class PerQueryLinear(nn.Module):
    """A linear layer with weights of its own for every query.

    Vectors are query-major, [K, B, d]: a query's weights then meet its whole batch in one matrix product.
    """

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
    """`mlp` with weights of its own for every query."""
    if hidden is None:
        return PerQueryLinear(queries, in_features, out_features, bias)
    return nn.Sequential(
        PerQueryLinear(queries, in_features, hidden), nn.ReLU(), PerQueryLinear(queries, hidden, out_features, bias)
    )


class QueryMade(nn.Module):
    """A layer whose weights are made from the queries: it is called with the vectors and the queries."""


class QueryMadeLinear(QueryMade):
    """y = V (s * (U x)) + B q, with s = S q + 1: query q's weight matrix is V diag(s) U, of a chosen rank.

    As in ML-Decoder's eq. 6 all labels share what is learned, and a label's vector selects its own weights from it; the
    matrices of the labels are never written out. With s = 1 all labels have the same layer.
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
