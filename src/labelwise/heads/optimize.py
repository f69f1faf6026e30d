"""A head for inference: what does not depend on the image is computed once."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.absorbed import AbsorbedAttention, Reading, cheapest_reading
from labelwise.heads.attention import Attention
from labelwise.heads.classifier import GroupClassifier, WordClassifier
from labelwise.heads.details import Recorder
from labelwise.heads.experts import HybridSharing, HybridSharingLayer
from labelwise.heads.from_query import QueryMadeLinear
from labelwise.heads.layers import DecoderLayer
from labelwise.heads.pooling import CsraHead
from labelwise.heads.queries import Queries, words_by_slot
from labelwise.heads.query_head import QueryHead
from labelwise.heads.registry import Head


@torch.no_grad()
def optimize(head: Head, tokens: int = 49) -> Head:
    """A copy that gives the same logits and details faster, for inference only; the head itself is left as it is.

    The first decoder layer's queries are normalised and projected, word vectors become queries and classifier weights,
    key and value projections are absorbed where that is cheaper, dropout and HSQ's unread shared stream are gone. Any
    number of tokens works; `tokens` is the number to be fastest for (the area of the feature map).

    >>> from labelwise.heads.registry import create
    >>> head = create("ml-decoder", in_features=64, labels=80, groups=20).eval()
    >>> x = torch.randn(2, 64, 14, 14)
    >>> bool((optimize(head, tokens=196)(x) - head(x)).abs().max() < 1e-4)
    True
    """
    fast = copy.deepcopy(head).eval().requires_grad_(False)
    _remove_dropout(fast)
    if isinstance(fast, CsraHead):
        fast.weight.copy_(fast.directions())
        fast.normalized = True
    elif isinstance(fast, QueryHead):
        _fix_words(fast)
        _drop_shared_stream(fast)
        _fix_queries(fast, tokens)
    return fast


class ReadingLayer(nn.Module):
    """A decoder layer that reads the tokens in a given way, with its query side known in advance if it is `fixed`."""

    def __init__(self, layer: DecoderLayer, reading: Reading, fixed: tuple[Tensor, Tensor] | None) -> None:
        """`fixed`: the stream [1, K, D] and the query [1, K, D] before reading, if they are the same for all images."""
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
        """The query side of the attention: all that can be done before the tokens are known."""
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


def _fix_queries(head: QueryHead, tokens: int) -> None:
    queries = head.queries(head.word_vectors)[None]  # [1, K, D]
    decoder = head.decoder
    positions, stream = None, queries
    if decoder.query_role == "position":
        positions, stream = queries, torch.zeros_like(queries)
    for part in head.experts.modules():
        if isinstance(part, QueryMadeLinear):
            for name in ("scale", "shift"):
                part.set_submodule(name, _Known(part.get_submodule(name)(queries[0])))
    for number, layer in enumerate(decoder.layers):
        assert isinstance(layer, DecoderLayer)
        # From the first reading on the queries depend on the image.
        fixed = layer.before_reading(stream, positions) if number == 0 else None
        dim, heads = stream.shape[-1], layer.multihead_attn.heads
        reading = cheapest_reading(head.groups, tokens, dim, heads, fixed=fixed is not None)
        if fixed is not None or reading != "project":
            decoder.layers[number] = ReadingLayer(layer, reading, fixed)


class _Known(nn.Module):
    """A layer whose input is always the same: only its output is kept."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = nn.Parameter(output, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.output


def _fix_words(head: QueryHead) -> None:
    """Word vectors become plain queries, and the word-factored classifier the group classifier that it stands for."""
    words = head.word_vectors
    if words is None:
        return
    if head.label_slot is not None:
        words = words_by_slot(words, head.label_slot, head.groups * head.group_size)  # [K * g, d_w]
    queries = head.queries(words)
    fixed = Queries(queries.shape[0], queries.shape[1], learnable=False)
    fixed.weight.copy_(queries)
    head.queries = fixed
    if isinstance(head.classifier, WordClassifier):
        # Eq. 6: W_k = W_b M_k
        weight = F.linear(words, head.classifier.project.weight.T)  # [K * g, D]
        group = GroupClassifier(head.groups, weight.shape[1], head.labels, head.group_size, hidden=None)
        by_group = group.weights.get_parameter("weight")  # [K, D, g]
        by_group.copy_(weight.unflatten(0, (head.groups, -1)).transpose(1, 2))
        group.bias.copy_(head.classifier.bias.expand(head.labels))
        head.classifier = group.requires_grad_(False)
    head.word_vectors = None


def _drop_shared_stream(head: QueryHead) -> None:
    """The shared output is read by the next layer's shared experts under the progressive wiring, and else by nobody."""
    if isinstance(head.experts, HybridSharing):
        for number, layer in enumerate(head.experts.layers):
            assert isinstance(layer, HybridSharingLayer)
            if not layer.progressive or number == len(head.experts.layers) - 1:
                layer.shared_gate = None


def _remove_dropout(module: nn.Module) -> None:
    for part in list(module.modules()):
        if isinstance(part, Attention):
            part.dropout = 0.0
        for name, child in part.named_children():
            if isinstance(child, nn.Dropout):
                setattr(part, name, nn.Identity())
