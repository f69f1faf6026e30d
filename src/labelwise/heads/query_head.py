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
from labelwise.heads.queries import create_queries, label_slots, words_by_slot
from labelwise.heads.tokens import Tokens


class QueryHead(nn.Module):
    """[B, C, H, W] or [B, T, C] -> logits [B, N]. The label groups and the word vectors are saved in the state dict."""

    label_slot: Tensor | None  # [N], where each label sits in the groups; None: every label has its own query
    word_vectors: Tensor | None  # [N, d_w]

    def __init__(
        self, config: QueryHeadConfig, in_features: int, labels: int, word_vectors: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config, self.in_features, self.labels = config, in_features, labels
        dim = config.tokens.dim or in_features
        feedforward = config.decoder.feedforward or round(config.decoder.feedforward_ratio * dim)
        self.groups = min(config.queries.groups or labels, labels)  # K
        self.group_size = -(-labels // self.groups)  # g = ceil(N / K)
        slots = label_slots(labels, config.queries.group_seed) if self.group_size > 1 else None
        self.register_buffer("label_slot", slots)
        self.register_buffer("word_vectors", self._checked_words(word_vectors))
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

    def _checked_words(self, vectors: Tensor | None) -> Tensor | None:
        """The word vectors [N, d_w] as given, or zeros to be filled from a state dict."""
        config = self.config
        if config.queries.queries != "words" and config.classifier.classifier != "words":
            return None
        word_dim = config.queries.word_dim
        if word_dim is None:
            raise LabelwiseError("word queries need word_vectors, a tensor [labels, length], one row for each label")
        if vectors is None:
            return torch.zeros(self.labels, word_dim)
        if vectors.shape != (self.labels, word_dim):
            raise LabelwiseError(f"word_vectors must be [{self.labels}, {word_dim}], not {list(vectors.shape)}")
        return vectors.detach().float().clone()

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

    def _run(self, x: Tensor, record: Recorder | None) -> Tensor:
        words = self.word_vectors
        if words is not None and self.label_slot is not None:
            words = words_by_slot(words, self.label_slot, self.groups * self.group_size)  # [K * g, d_w]
        tokens, key_positions = self.tokens(*as_tokens(x, self.in_features))
        decoded = self.decoder(self.queries(words), tokens, key_positions, record)  # [B, K, D]
        # Query-major from here on: experts and classifiers have weights of their own for each query.
        refined = self.experts(decoded.transpose(0, 1).contiguous(), record)  # [K, B, d]
        slots = self.classifier(refined, words).transpose(0, 1).flatten(1)  # [B, K * g]
        by_label: Tensor = slots if self.label_slot is None else slots.index_select(1, self.label_slot)
        return by_label + self.classifier.bias
