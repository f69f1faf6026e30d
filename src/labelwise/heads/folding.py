"""Heads for inference: what does not depend on the image is computed once."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import Head, Recorder
from labelwise.heads.experts import HybridSharing, HybridSharingLayer
from labelwise.heads.layers import Attention, DecoderLayer, QueryMadeLinear

Reading = Literal["project", "absorb-keys", "absorb-both"]
# Multiply-adds of the absorbed forms are slower: softmax is outside the fused kernel, and products are split by image
# or head. Measured on one core: 43 G/s when projecting, 37 with known queries, 25 to 37 with queries per image.
_SLOWER_FIXED, _SLOWER_PER_IMAGE = 1.15, 1.5


def cheapest_reading(queries: int, tokens: int, dim: int, heads: int, *, fixed: bool) -> Reading:
    """Whether to project tokens to keys and values, or to absorb the projections into queries and outputs.

    `fixed`: all images have the same queries, so their products with W_k are known.

    >>> cheapest_reading(20, 196, 768, 8, fixed=True), cheapest_reading(100, 49, 768, 8, fixed=True)
    ('absorb-both', 'project')
    """
    # Multiply-adds for one image, without the projections of query and output, which all forms share.
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
    """The same as `Attention.read`, from tokens that are not projected to keys (and values)."""

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


@torch.no_grad()
def optimize(head: Head, tokens: int = 49) -> Head:
    """A faster copy for inference that gives the same logits and details; the head itself does not change.

    The first decoder layer's queries are normalized and projected, word vectors become queries and classifier weights,
    key and value projections are absorbed if that is cheaper, dropout and HSQ's unread shared stream are removed. Graph
    layers on the labels become what they compute: ML-GCN's whole graph network is one [N, C] classifier.

    Args:
        head: Any head; its class says what can be precomputed (`Head.fold_constants`).
        tokens: The number of tokens (height x width of the feature map) to be fastest for; any number works.

    >>> from labelwise.heads import create
    >>> head = create("ml-decoder", in_features=64, labels=80, groups=20).eval()
    >>> x = torch.randn(2, 64, 14, 14)
    >>> bool((optimize(head, tokens=196)(x) - head(x)).abs().max() < 1e-4)
    True
    """
    fast = copy.deepcopy(head).eval().requires_grad_(False)
    _remove_dropout(fast)
    fast.fold_constants(tokens)
    return fast


class ReadingLayer(nn.Module):
    """A decoder layer that reads the tokens in a given way; if `fixed`, its query side is precomputed."""

    def __init__(self, layer: DecoderLayer, reading: Reading, fixed: tuple[Tensor, Tensor] | None) -> None:
        """`fixed`: the stream [1, K, D] and the query [1, K, D] before reading, if all images have the same."""
        super().__init__()
        attention = layer.multihead_attn
        self.layer = layer
        self.reader: Attention | AbsorbedAttention = (
            attention if reading == "project" else AbsorbedAttention(attention, values=reading == "absorb-both")
        )
        self.stream: Tensor | None = None
        self.query: Tensor | None = None
        if fixed is not None:
            self.stream = nn.Parameter(fixed[0], requires_grad=False)
            self.query = nn.Parameter(self._prepare(fixed[1]), requires_grad=False)

    def _prepare(self, query: Tensor) -> Tensor:
        """The query side of the attention: what does not depend on the tokens."""
        q = self.layer.multihead_attn.project_query(query)  # [B or 1, heads, K, d]
        return self.reader.absorb(q) if isinstance(self.reader, AbsorbedAttention) else q

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
        record: Recorder | None = None,
    ) -> Tensor:
        if self.stream is None or self.query is None:
            stream, query = self.layer.before_reading(x, query_positions)
            prepared = self._prepare(query)
        else:
            stream, prepared = self.stream, self.query
        return self.layer.after_reading(stream + self.reader.read(prepared, memory, key_positions, record))


def fix_queries(queries: Tensor, layers: nn.ModuleList, query_role: str, experts: nn.Module, tokens: int) -> None:
    """Precompute what depends only on the queries [K, D]: the first layer's query side, and experts made from them."""
    positions, stream = None, queries[None]  # [1, K, D]
    if query_role == "position":
        positions, stream = stream, torch.zeros_like(stream)
    for part in experts.modules():
        if isinstance(part, QueryMadeLinear):
            for name in ("scale", "shift"):
                part.set_submodule(name, Known(part.get_submodule(name)(queries)))
    for number, layer in enumerate(layers):
        assert isinstance(layer, DecoderLayer)
        # After the first layer the queries depend on the image.
        fixed = layer.before_reading(stream, positions) if number == 0 else None
        dim, heads = stream.shape[-1], layer.multihead_attn.heads
        reading = cheapest_reading(len(queries), tokens, dim, heads, fixed=fixed is not None)
        if fixed is not None or reading != "project":
            layers[number] = ReadingLayer(layer, reading, fixed)


class Known(nn.Module):
    """A layer whose inputs never change: only its output is kept."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = nn.Parameter(output, requires_grad=False)

    def forward(self, *inputs: Tensor | None) -> Tensor:
        return self.output


def drop_shared_stream(experts: nn.Module) -> None:
    """Only the next layer's shared experts read the shared output, and only under the progressive wiring."""
    if isinstance(experts, HybridSharing):
        for number, layer in enumerate(experts.layers):
            assert isinstance(layer, HybridSharingLayer)
            if not layer.progressive or number == len(experts.layers) - 1:
                layer.shared_gate = None


def _remove_dropout(module: nn.Module) -> None:
    for part in list(module.modules()):
        if isinstance(part, Attention):
            part.dropout = 0.0
        for name, child in part.named_children():
            if isinstance(child, nn.Dropout):
                setattr(part, name, nn.Identity())
