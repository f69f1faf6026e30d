"""The one query head of both papers: tokens -> queries -> decoder -> experts -> classifier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.core.errors import LabelwiseError
from labelwise.heads.base import Head, HeadDetails, Recorder, as_tokens, checked_words, on_grid
from labelwise.heads.builtin import QUERY_PRESETS
from labelwise.heads.config import (
    ClassifierConfig,
    DecoderConfig,
    QueryHeadConfig,
    TokensConfig,
)
from labelwise.heads.experts import create_experts
from labelwise.heads.folding import drop_shared_stream, fix_queries
from labelwise.heads.layers import DecoderLayer, EncoderLayer, PerQueryLinear, mlp, per_query_mlp
from labelwise.heads.queries import (
    Queries,
    augmented,
    create_queries,
    dealt_slots,
    group_shape,
    label_slots,
    random_words,
    refill,
    regroup,
    words_by_slot,
)
from labelwise.heads.registry import register_head


@register_head(QueryHeadConfig, QUERY_PRESETS)
class QueryHead(Head):
    """[B, C, H, W] or [B, T, C] -> logits [B, N]. Label groups and word vectors are saved in the state dict."""

    config: QueryHeadConfig
    label_slot: Tensor | None  # [N], each label's slot in the groups; None: every label has its own query

    def __init__(
        self,
        config: QueryHeadConfig,
        in_features: int,
        labels: int,
        word_vectors: Tensor | None = None,
        label_slot: Tensor | None = None,
    ) -> None:
        super().__init__(config, in_features, labels)
        if config.queries.random_queries:
            self._require_room_for_random_queries()
        dim = config.tokens.dim or in_features
        feedforward = config.decoder.feedforward or round(config.decoder.feedforward_ratio * dim)
        self.groups, self.group_size = group_shape(labels, config.queries)  # K, g
        if config.queries.keep_groups and self.group_size == 1:
            raise LabelwiseError("keep_groups is for groups of several labels; use fewer groups than labels")
        self.register_buffer("label_slot", self._checked_slots(label_slot))
        if config.takes_words:
            self.register_buffer("word_vectors", checked_words(word_vectors, labels, config.queries.word_dim))
            if self.group_size > dim:
                raise LabelwiseError(f"groups of {self.group_size} labels do not fit into dim={dim}; use more groups")

        self.tokens = Tokens(in_features, dim, feedforward, config.tokens, config.decoder)
        self.queries = create_queries(self.groups, dim, self.group_size, config.queries)
        self.decoder = Decoder(dim, feedforward, config.decoder)
        self.experts = create_experts(self.groups, dim, config.experts)
        self.classifier = create_classifier(
            self.groups, self.experts.out_features, labels, self.group_size, config.queries.word_dim, config.classifier
        )
        # Asked of every query in training alone: is this one of the random ones?
        asks_for_noise = config.queries.random_queries and config.queries.random_target == "noise"
        self.noise = nn.Linear(self.experts.out_features, 1) if asks_for_noise else None
        if config.decoder.layer_init == "xavier":
            for parameter in (*self.tokens.encoder.parameters(), *self.decoder.parameters()):
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)

    @property
    def label_query(self) -> Tensor:
        """The query that answers for each label, [N]."""
        if self.label_slot is None:
            return super().label_query
        return self.label_slot // self.group_size

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x, None)

    def details(self, x: Tensor) -> HeadDetails:
        """The logits with every layer's cross-attention and gates, and the shared output if there is one."""
        record = Recorder()
        logits = self._run(x, record)
        return HeadDetails(
            logits,
            self.label_query,
            attention_layers=tuple(on_grid(weights, x) for weights in record.attention),
            gates=tuple(weights.transpose(0, 1) for weights in record.gates),
            shared=None if record.shared is None else record.shared.transpose(0, 1),
        )

    def _run(self, x: Tensor, record: Recorder | None) -> Tensor:
        words = self._words()
        queries = self.queries(words)  # [K, D]
        tokens, key_positions = self.tokens(*as_tokens(x, self.in_features), whole=record is not None)
        decoded = self.decoder(queries, tokens, key_positions, record)  # [B, K, D]
        # Query-major from here on: experts and classifiers have weights of their own for each query.
        refined = self.experts(decoded.transpose(0, 1).contiguous(), record, queries)  # [K, B, d]
        if self.noise is None or not self.training:
            return self._classify(refined, words)
        labels = self._classify(
            refined[: self.groups], None if words is None else words[: self.groups * self.group_size]
        )
        return torch.cat((labels, self.noise(refined)[..., 0].T), dim=1)  # [B, N + K + random queries]

    def _classify(self, refined: Tensor, words: Tensor | None) -> Tensor:
        slots = self.classifier(refined, words).transpose(0, 1).flatten(1)  # [B, K * g]
        logits: Tensor = self._by_label(slots) + self.classifier.bias
        return logits

    def training_targets(self, targets: Tensor) -> Tensor:
        random = self.config.queries.random_queries
        if not (random and self.training):
            return targets
        if self.noise is None:
            return F.pad(targets, (0, random * self.group_size), value=1)
        return F.pad(F.pad(targets, (0, self.groups), value=0), (0, random), value=1)

    def _require_room_for_random_queries(self) -> None:
        """Weights of each query's own have nothing for a random one; a noise answer does not need the classifier's."""
        bound = self.config.bound_options
        if self.config.queries.random_target == "present" or bound.keys() - {"head.classifier"}:
            self.config.require_new_labels("random_queries")
        if self.config.queries.keep_groups:
            raise LabelwiseError("random_queries are for queries that depend on words alone; leave keep_groups out")

    def _words(self) -> Tensor | None:
        """Word vectors in the order of the slots, [K * g, d_w]; in training, those of random queries follow."""
        clean, config = self.word_vectors, self.config.queries
        if clean is None:
            return None
        words = augmented(clean, config) if self.training else clean
        if self.label_slot is not None:
            words = words_by_slot(words, self.label_slot, self.groups * self.group_size)
        if self.training and config.random_queries:
            words = torch.cat((words, random_words(clean, config.random_queries * self.group_size)))
        return words

    def _by_label(self, slots: Tensor) -> Tensor:
        """[B, K * g] -> [B, N]; in training, logits of random queries follow."""
        if self.label_slot is None:
            return slots
        by_label = slots.index_select(1, self.label_slot)
        extra = slots[:, self.groups * self.group_size :]
        return torch.cat((by_label, extra), dim=1) if extra.shape[1] else by_label

    def _checked_slots(self, slots: Tensor | None) -> Tensor | None:
        """Each label's slot in the groups [N]: as given, or at random. None: one query per label."""
        if self.group_size == 1:
            if slots is not None:
                raise LabelwiseError("label_slot is for groups, but this head has a query for each label; set groups")
            return None
        if slots is None:
            order = label_slots(self.labels, self.config.queries.group_seed)
            keep = self.config.queries.keep_groups  # then every group needs a label to learn from
            return torch.tensor(dealt_slots(self.groups, self.group_size))[order] if keep else order
        total = self.groups * self.group_size
        chosen = set(slots.flatten().tolist())
        if slots.shape != (self.labels,) or len(chosen) != self.labels or min(chosen) < 0 or max(chosen) >= total:
            raise LabelwiseError(
                f"label_slot must be {self.labels} different numbers from 0 to {total - 1} "
                f"({self.groups} groups of {self.group_size} labels)"
            )
        return slots.detach().long().clone()

    def relabelled(self, before: Sequence[str], after: Sequence[str], word_vectors: Tensor) -> Self:
        groups, buffers, state = len(after), {}, {}
        if self.label_slot is not None:
            seed, known = self.config.queries.group_seed, self.label_slot.tolist()
            if self.config.queries.keep_groups:
                groups, dealt = self.groups, dealt_slots(self.groups, self.group_size)
                slots = torch.tensor(refill(before, known, after, dealt, seed), device=self.label_slot.device)
                bias = self.classifier.bias
                if bias.dim():  # of every label: it goes with the slot
                    by_slot = bias.new_zeros(len(dealt)).index_copy(0, self.label_slot, bias)
                    state["classifier.bias"] = by_slot[slots]
            else:
                slots = torch.tensor(
                    regroup(before, known, after, self.group_size, seed), device=self.label_slot.device
                )
                groups = int(slots.max()) // self.group_size + 1
            buffers["label_slot"] = slots
        grouping = {"groups": groups, "group_size": self.group_size}
        queries = self.config.queries.model_copy(update=grouping)
        config = self.config.model_copy(update={"queries": queries})
        return self._rebuilt(config, len(after), word_vectors, buffers, state)

    def fold_constants(self, tokens: int) -> None:
        self.noise = None
        self._fold_words()
        drop_shared_stream(self.experts)
        fix_queries(self.queries(None), self.decoder.layers, self.decoder.query_role, self.experts, tokens)

    def _fold_words(self) -> None:
        """Word vectors become plain queries; the word classifier becomes the group classifier that it stands for."""
        if self.word_vectors is None:
            return
        words = self.word_vectors
        if self.label_slot is not None:
            words = words_by_slot(words, self.label_slot, self.groups * self.group_size)  # [K * g, d_w]
        queries = self.queries(words)
        self.queries = Queries(queries.shape[0], queries.shape[1], learnable=False).to(queries)
        self.queries.weight.copy_(queries)
        if isinstance(self.classifier, WordClassifier):
            self.classifier = self.classifier.for_words(words, self.labels, self.groups).requires_grad_(False)
        self.word_vectors = None


class Tokens(nn.Module):
    """Part 1: projection, positions and encoder layers."""

    def __init__(
        self, in_features: int, dim: int, feedforward: int, config: TokensConfig, layer: DecoderConfig
    ) -> None:
        super().__init__()
        if config.positions != "none" and dim % 4:
            raise LabelwiseError(f"sine positions need a dim divisible by 4, not {dim}; choose another dim")
        self.dim = dim
        self.positions = config.positions
        self.relu = config.token_relu
        self.dropout = config.token_dropout
        if not config.project and dim != in_features:
            raise LabelwiseError(f"without a projection, dim is the map's {in_features} channels; leave out dim={dim}")
        # a 1x1 convolution on [B, C, H, W]
        self.project = nn.Linear(in_features, dim) if config.project else nn.Identity()
        self.encoder = nn.ModuleList(
            EncoderLayer(dim, layer.attention_heads, feedforward, layer.dropout) for _ in range(config.encoder_layers)
        )

    def forward(self, x: Tensor, grid: tuple[int, int] | None, whole: bool = False) -> tuple[Tensor, Tensor | None]:
        """[B, T, C] on a `grid` (H, W) -> tokens [B, T, D] and the positions [1, T, D] that attention adds to keys.

        In training `token_dropout` drops tokens, unless `whole`; each image then has positions of its own.
        """
        kept = None if whole or not (self.training and self.dropout) else _random_tokens(x, self.dropout)  # [B, t]
        if kept is not None:
            x = _chosen_tokens(x, kept)
        tokens = self.project(x)
        if self.relu:
            tokens = F.relu(tokens)
        positions = None
        if self.positions != "none":
            if grid is None:
                raise LabelwiseError("this head adds 2-D positions: give it the map [B, C, H, W], not tokens [B, T, C]")
            positions = sine_positions(*grid, self.dim, tokens)[None]
            if kept is not None:
                positions = positions[0, kept]  # [B, t, D]
        if self.positions == "input":
            tokens, positions = tokens + positions, None
        for layer in self.encoder:
            tokens = layer(tokens, positions)
        return tokens, positions


def sine_positions(height: int, width: int, dim: int, like: Tensor) -> Tensor:
    """DETR's 2-D sine positions [H * W, D]: half of the channels encode the row, half the column.

    Rows and columns are scaled to (0, 2 pi], so maps of different sizes share one coordinate system.
    """
    half = dim // 2
    frequency = 10000 ** (torch.arange(half, device=like.device).div(2, rounding_mode="floor") * 2 / half)  # [D/2]

    def axis(length: int) -> Tensor:
        position = torch.arange(1, length + 1, device=like.device) / length * (2 * math.pi)
        angle = position[:, None] / frequency  # [length, D/2]
        return torch.stack((angle[:, 0::2].sin(), angle[:, 1::2].cos()), dim=2).flatten(1)

    rows = axis(height)[:, None, :].expand(height, width, half)
    columns = axis(width)[None, :, :].expand(height, width, half)
    return torch.cat((rows, columns), dim=2).flatten(0, 1).to(like.dtype)


def _random_tokens(x: Tensor, dropout: float) -> Tensor:
    """The indices of the tokens [B, T, C] that stay: [B, t], at least one."""
    stay = max(1, round(x.shape[1] * (1 - dropout)))
    return torch.rand(x.shape[:2], device=x.device).argsort(dim=1)[:, :stay]


def _chosen_tokens(x: Tensor, kept: Tensor) -> Tensor:
    """`x.take_along_dim(kept[..., None], dim=1)`, [B, t, C], which would look up the index for each channel."""
    first = torch.arange(0, x.shape[0] * x.shape[1], x.shape[1], device=x.device)[:, None]
    return x.flatten(0, 1).index_select(0, (first + kept).flatten()).view(*kept.shape, x.shape[2])


class Decoder(nn.Module):
    """Part 3: queries read the tokens."""

    def __init__(self, dim: int, feedforward: int, config: DecoderConfig) -> None:
        super().__init__()
        self.query_role = config.query_role
        self.first_block, self.dropout = config.first_block, config.dropout
        self.layers = nn.ModuleList(
            DecoderLayer(dim, config.attention_heads, feedforward, config.dropout, config.first_block)
            for _ in range(config.decoder_layers)
        )
        self.norm = nn.LayerNorm(dim) if config.final_norm else nn.Identity()

    def forward(
        self, queries: Tensor, tokens: Tensor, key_positions: Tensor | None, record: Recorder | None = None
    ) -> Tensor:
        """queries [K, D], tokens [B, T, D] -> [B, K, D]."""
        # Nothing before the first cross-attention depends on the image, so a batch of one is enough; except for
        # dropout in a first block, which has a mask for every image.
        x = queries[None]
        if self.training and self.dropout and self.first_block != "none":
            x = x.expand(tokens.shape[0], -1, -1)
        query_positions = None
        if self.query_role == "position":
            query_positions, x = queries[None], torch.zeros_like(x)
        for layer in self.layers:
            x = layer(x, tokens, query_positions, key_positions, record)
        out: Tensor = self.norm(x)
        return out


class GroupClassifier(nn.Module):
    """Part 5: ML-Decoder's group fully-connected layer (eq. 3) as one batched product. g = 1: one vector per label."""

    def __init__(self, queries: int, dim: int, labels: int, group_size: int, config: ClassifierConfig) -> None:
        super().__init__()
        self.weights = per_query_mlp(queries, dim, config.classifier_hidden, group_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(labels))
        if config.classifier_init == "xavier" and isinstance(self.weights, PerQueryLinear):
            nn.init.xavier_normal_(self.weights.weight)

    def forward(self, x: Tensor, words: Tensor | None) -> Tensor:  # [K, B, D] -> [K, B, g]
        out: Tensor = self.weights(x)
        return out


class SharedClassifier(nn.Module):
    """The same weights for every query, so that their number and order may change after training (section 2.3.3)."""

    def __init__(self, dim: int, group_size: int, hidden: int | None) -> None:
        super().__init__()
        self.weights = mlp(dim, hidden, group_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, words: Tensor | None) -> Tensor:
        out: Tensor = self.weights(x)
        return out


class WordClassifier(nn.Module):
    """Weights made from the labels' word vectors, W_k = W_b M_k (eq. 6), never written out."""

    def __init__(self, dim: int, word_dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, word_dim, bias=False)  # W_b
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        by_query = words.unflatten(0, (x.shape[0], -1)).transpose(1, 2)  # M_k: [K, d_w, g]
        return torch.bmm(self.project(x), by_query)

    def for_words(self, words: Tensor, labels: int, queries: int) -> GroupClassifier:
        """The group classifier with the weights W_k that these words [K * g, d_w] give."""
        weight = F.linear(words, self.project.weight.T).unflatten(0, (queries, -1)).transpose(1, 2)  # [K, D, g]
        group = GroupClassifier(queries, weight.shape[1], labels, weight.shape[2], ClassifierConfig()).to(weight)
        group.weights.get_parameter("weight").copy_(weight)
        group.bias.copy_(self.bias.expand(labels))
        return group


def create_classifier(
    queries: int, dim: int, labels: int, group_size: int, word_dim: int | None, config: ClassifierConfig
) -> GroupClassifier | SharedClassifier | WordClassifier:
    if config.classifier == "words":
        assert word_dim is not None
        return WordClassifier(dim, word_dim)
    if config.classifier == "shared":
        return SharedClassifier(dim, group_size, config.classifier_hidden)
    return GroupClassifier(queries, dim, labels, group_size, config)
