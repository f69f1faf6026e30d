"""The one query head of both papers: tokens -> queries -> decoder -> experts -> classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelwise.errors import LabelwiseError
from labelwise.heads.classifier import create_classifier
from labelwise.heads.config import QueryHeadConfig
from labelwise.heads.decoder import Decoder
from labelwise.heads.details import HeadDetails, Recorder
from labelwise.heads.experts import create_experts
from labelwise.heads.features import as_tokens
from labelwise.heads.queries import create_queries, group_shape, label_slots, words_by_slot
from labelwise.heads.query_augmentation import noisy, random_words
from labelwise.heads.tokens import Tokens
from labelwise.heads.word_buffer import checked_words
from labelwise.heads.word_head import require_word_head, uses_words


class QueryHead(nn.Module):
    """[B, C, H, W] or [B, T, C] -> logits [B, N]. The label groups and the word vectors are saved in the state dict."""

    label_slot: Tensor | None  # [N], where each label sits in the groups; None: every label has its own query
    word_vectors: Tensor | None  # [N, d_w]

    def __init__(
        self,
        config: QueryHeadConfig,
        in_features: int,
        labels: int,
        word_vectors: Tensor | None = None,
        label_slot: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.config, self.in_features, self.labels = config, in_features, labels
        if config.queries.random_queries:
            require_word_head(config, "random_queries")
        dim = config.tokens.dim or in_features
        feedforward = config.decoder.feedforward or round(config.decoder.feedforward_ratio * dim)
        self.groups, self.group_size = group_shape(labels, config.queries)  # K, g
        self.register_buffer("label_slot", self._checked_slots(label_slot))
        words = checked_words(word_vectors, labels, config.queries.word_dim) if uses_words(config) else None
        self.register_buffer("word_vectors", words)
        if self.word_vectors is not None and self.group_size > dim:
            raise LabelwiseError(f"{self.group_size} labels a group do not fit into dim={dim}; use more groups")

        self.tokens = Tokens(in_features, dim, feedforward, config.tokens, config.decoder)
        self.queries = create_queries(self.groups, dim, self.group_size, config.queries)
        self.decoder = Decoder(dim, feedforward, config.decoder)
        self.experts = create_experts(self.groups, dim, config.experts)
        self.classifier = create_classifier(
            self.groups,
            self.experts.out_features,
            labels,
            self.group_size,
            config.queries.word_dim,
            config.classifier,
        )

    def _checked_slots(self, slots: Tensor | None) -> Tensor | None:
        """Where each label sits in the groups [N]: as given, or dealt at random. None: one query per label."""
        if self.group_size == 1:
            if slots is not None:
                raise LabelwiseError(
                    "label_slot is for groups of labels, but this head has a query for each; set groups"
                )
            return None
        if slots is None:
            return label_slots(self.labels, self.config.queries.group_seed)
        total = self.groups * self.group_size
        if sorted(set(slots.tolist()) & set(range(total))) != sorted(slots.tolist()) or len(slots) != self.labels:
            raise LabelwiseError(
                f"label_slot must be {self.labels} different numbers from 0 to {total - 1} "
                f"({self.groups} groups of {self.group_size} labels)"
            )
        return slots.detach().long().clone()

    @property
    def label_query(self) -> Tensor:
        """The query that answers for each label, [N]."""
        if self.label_slot is None:
            return torch.arange(self.labels, device=self.classifier.bias.device)
        return self.label_slot // self.group_size

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x, None)

    def details(self, x: Tensor) -> HeadDetails:
        """The logits with every layer's cross-attention, every gate's weights and the shared output if there is one."""
        record = Recorder()
        logits = self._run(x, record)
        height, width = x.shape[2:] if x.dim() == 4 else (1, x.shape[1])
        return HeadDetails(
            logits=logits,
            attention_layers=tuple(weights.unflatten(-1, (height, width)) for weights in record.attention),
            gates=tuple(weights.transpose(0, 1) for weights in record.gates),
            shared=None if record.shared is None else record.shared.transpose(0, 1),
            label_query=self.label_query,
        )

    def _words(self) -> Tensor | None:
        """Word vectors in the order of the slots: [K * g, d_w], in training with random words for R more queries."""
        clean, config = self.word_vectors, self.config.queries
        if clean is None:
            return None
        words = noisy(clean, config.query_noise) if self.training else clean
        if self.label_slot is not None:
            words = words_by_slot(words, self.label_slot, self.groups * self.group_size)
        if self.training and config.random_queries:
            words = torch.cat((words, random_words(clean, config.random_queries * self.group_size)))
        return words

    def _run(self, x: Tensor, record: Recorder | None) -> Tensor:
        words = self._words()
        queries = self.queries(words)  # [K, D]
        tokens, key_positions = self.tokens(*as_tokens(x, self.in_features), whole=record is not None)
        decoded = self.decoder(queries, tokens, key_positions, record)  # [B, K, D]
        # Query-major from here on: experts and classifiers have weights of their own for each query.
        refined = self.experts(decoded.transpose(0, 1).contiguous(), record, queries)  # [K, B, d]
        slots = self.classifier(refined, words).transpose(0, 1).flatten(1)  # [B, K * g]
        logits: Tensor = self._by_label(slots) + self.classifier.bias
        return logits

    def _by_label(self, slots: Tensor) -> Tensor:
        """[B, K * g] -> [B, N]; in training the answers of random queries follow."""
        if self.label_slot is None:
            return slots
        by_label = slots.index_select(1, self.label_slot)
        extra = slots[:, self.groups * self.group_size :]
        return torch.cat((by_label, extra), dim=1) if extra.shape[1] else by_label
