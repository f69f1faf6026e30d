"""CONSE (Norouzi et al., ICLR 2014): a classifier of the seen labels, and their word vectors mixed by its answers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import HeadDetails, as_tokens
from labelwise.heads.config import ConseConfig
from labelwise.heads.words import checked_words


class ConseHead(nn.Module):
    """Average pooling and a linear classifier of the seen labels, which is all that is trained.

    In training mode the logits are the classifier's. In evaluation mode the word vectors of its `top` surest labels
    are mixed by their probabilities, and the logit of any label is the cosine between its word vector and the mixture.
    """

    seen_vectors: Tensor  # [S, d_w], of the labels that the classifier knows
    word_vectors: Tensor  # [N, d_w], of the labels that are asked for

    def __init__(self, config: ConseConfig, in_features: int, labels: int, word_vectors: Tensor | None = None) -> None:
        super().__init__()
        vectors = checked_words(word_vectors, labels, config.word_dim)
        seen = config.seen_labels or labels
        self.config = config.model_copy(update={"seen_labels": seen})
        self.in_features, self.labels = in_features, labels
        self.register_buffer("word_vectors", vectors)
        self.register_buffer(
            "seen_vectors", vectors.clone() if seen == labels else vectors.new_zeros(seen, vectors.shape[1])
        )
        self.classifier = nn.Linear(in_features, seen)

    def forward(self, x: Tensor) -> Tensor:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        seen_logits: Tensor = self.classifier(tokens.mean(dim=1))  # [B, S]
        if self.training:
            return seen_logits
        surest, which = seen_logits.sigmoid().topk(min(self.config.top, seen_logits.shape[1]), dim=1)  # [B, T]
        mixture = (surest.unsqueeze(2) * self.seen_vectors[which]).sum(dim=1)  # [B, d_w]
        return F.linear(F.normalize(mixture, dim=1), F.normalize(self.word_vectors, dim=1))

    def details(self, x: Tensor) -> HeadDetails:
        return HeadDetails(self(x), (), (), None, torch.arange(self.labels, device=x.device))
