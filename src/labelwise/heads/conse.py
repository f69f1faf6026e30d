"""CONSE (Norouzi et al., ICLR 2014): a classifier of the seen labels, and their word vectors mixed by its answers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import as_tokens
from labelwise.heads.registry import register_head
from labelwise.heads.word_configs import ConseConfig
from labelwise.heads.word_head import LabelVectors, WordHead


@register_head(ConseConfig)
class ConseHead(WordHead):
    """Average pooling and a linear classifier of the seen labels, which is all that is trained.

    In training mode the logits are the classifier's. In evaluation mode the word vectors of its `top` most probable
    labels are mixed by their probabilities; a label's logit is the cosine of its word vector and the mixture.
    """

    config: ConseConfig
    seen_vectors: Tensor  # [S, d_w], of the labels that the classifier knows

    def __init__(self, config: ConseConfig, in_features: int, labels: int, word_vectors: Tensor | None = None) -> None:
        seen = config.seen_labels or labels
        super().__init__(config.model_copy(update={"seen_labels": seen}), in_features, labels, word_vectors)
        vectors = self.relabelling_words()
        self.register_buffer(
            "seen_vectors", vectors.clone() if seen == labels else vectors.new_zeros(seen, self.word_dim)
        )
        self.classifier = nn.Linear(in_features, seen)
        self.label_vectors = LabelVectors(self.word_dim)

    def forward(self, x: Tensor) -> Tensor:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        seen_logits: Tensor = self.classifier(tokens.mean(dim=1))  # [B, S]
        if self.training:
            return seen_logits
        best, which = seen_logits.sigmoid().topk(min(self.config.top, seen_logits.shape[1]), dim=1)  # [B, T]
        mixture = (best.unsqueeze(2) * self.seen_vectors[which]).sum(dim=1)  # [B, d_w]
        return F.linear(F.normalize(mixture, dim=1), self.label_vectors(self.word_vectors))
