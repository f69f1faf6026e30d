"""RAM++ (Huang et al. 2023): queries that are texts, several descriptions of each tag, mixed by what the image shows.

With one description per tag it is RAM (Zhang et al. 2023): then nothing is mixed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.core.errors import LabelwiseError
from labelwise.heads.base import Head, HeadDetails, Recorder, as_tokens, checked_words, on_grid
from labelwise.heads.folding import Known
from labelwise.heads.layers import Dropout
from labelwise.heads.registry import register_head
from labelwise.heads.text_configs import RamPlusConfig

_EPSILON = 1e-12  # of BERT's norms


class TagDecoderLayer(nn.Module):
    """A layer of BERT without its self-attention: cross-attention and feed-forward, each with a residual and a norm.

    Parameters are named as in `nn.MultiheadAttention` where keys and values have another width than queries.
    """

    def __init__(self, dim: int, memory_dim: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query: nn.Module = nn.Linear(dim, dim)
        self.key = nn.Linear(memory_dim, dim)
        self.value = nn.Linear(memory_dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim, eps=_EPSILON)
        self.linear1 = nn.Linear(dim, feedforward)
        self.linear2 = nn.Linear(feedforward, dim)
        self.norm2 = nn.LayerNorm(dim, eps=_EPSILON)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, record: Recorder | None = None) -> Tensor:
        """Tags [B or 1, N, D] read the memory [B, T, M] -> [B, N, D]."""
        q, k, v = (self._split(part) for part in (self.query(x), self.key(memory), self.value(memory)))
        q = q.expand(memory.shape[0], -1, -1, -1)
        if record is None:
            read = F.scaled_dot_product_attention(q, k, v)
        else:
            weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(dim=-1)  # [B, heads, N, T]
            record.attention.append(weights)
            read = weights @ v
        x = self.norm1(x + self.dropout(self.out_proj(read.transpose(1, 2).flatten(2))))
        hidden = self.linear2(F.gelu(self.linear1(x)))
        out: Tensor = self.norm2(x + self.dropout(hidden))
        return out

    def _split(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, heads, T, D / heads]
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


@register_head(RamPlusConfig)
class RamPlusHead(Head):
    """Descriptions of tags are mixed by their similarity to the image, and the mixtures read the map.

    `word_vectors` are the descriptions' text embeddings one after the other: [N, M * d].
    """

    config: RamPlusConfig

    def __init__(
        self, config: RamPlusConfig, in_features: int, labels: int, word_vectors: Tensor | None = None
    ) -> None:
        super().__init__(config, in_features, labels)
        self.register_buffer("word_vectors", checked_words(word_vectors, labels, config.word_dim))
        assert self.word_vectors is not None
        width, rest = divmod(self.word_vectors.shape[1], config.descriptions)  # d
        if rest:
            raise LabelwiseError(
                f"word vectors of length {self.word_vectors.shape[1]} do not hold {config.descriptions} descriptions "
                "of a label; change one of them"
            )
        if config.dim % config.attention_heads:
            raise LabelwiseError(f"dim={config.dim} is not divisible by attention_heads={config.attention_heads}")
        self.project = nn.Linear(in_features, width)
        self.reweight_scale = nn.Parameter(torch.tensor(1 / 0.07).log()) if config.descriptions > 1 else None
        self.queries: nn.Module = nn.Linear(width, config.dim)
        size = (config.dim, width, config.attention_heads, config.feedforward, config.dropout)
        self.layers = nn.ModuleList(TagDecoderLayer(*size) for _ in range(config.decoder_layers))
        self.classifier = nn.Linear(config.dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self._logits(x)

    def details(self, x: Tensor) -> HeadDetails:
        record = Recorder()
        logits = self._logits(x, record)
        # The first token is the average of the map, and belongs nowhere on it.
        on_map = [weights[..., 1:] / weights[..., 1:].sum(dim=-1, keepdim=True) for weights in record.attention]
        return HeadDetails(logits, self.label_query, attention_layers=tuple(on_grid(each, x) for each in on_map))

    def _logits(self, x: Tensor, record: Recorder | None = None) -> Tensor:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        memory = self.project(torch.cat((tokens.mean(dim=1, keepdim=True), tokens), dim=1))  # [B, 1 + T, d]
        tags = F.relu(self.queries(self._texts(memory[:, 0])))  # [B or 1, N, D]
        for layer in self.layers:
            tags = layer(tags, memory, record)
        logits: Tensor = self.classifier(tags).squeeze(-1)
        return logits

    def fold_constants(self, tokens: int) -> None:
        if self.reweight_scale is None:  # all images have the same queries
            assert self.word_vectors is not None
            self.queries = Known(self.queries(self.word_vectors[None]))
            first = self.layers[0]
            assert isinstance(first, TagDecoderLayer)
            first.query = Known(first.query(F.relu(self.queries())))
            self.word_vectors = None

    def _texts(self, image: Tensor) -> Tensor | None:
        """Each tag's descriptions, mixed by a softmax of their similarity to the image [B, d]: [B, N, d].

        [1, N, d] with one description of each tag; None once they are folded into the queries.
        """
        if self.word_vectors is None:
            return None
        if self.reweight_scale is None:
            return self.word_vectors[None]
        texts = self.word_vectors.reshape(self.labels, self.config.descriptions, -1)  # [N, M, d]
        similar = torch.einsum("bd,nmd->bnm", F.normalize(image, dim=1), texts)
        weights = (self.reweight_scale.exp() * similar).softmax(dim=2)
        return torch.einsum("bnm,nmd->bnd", weights, texts)
