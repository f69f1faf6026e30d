"""What zero-shot heads share: labels are their word vectors, and nothing else belongs to a label."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import Head, checked_words
from labelwise.heads.word_configs import WordHeadConfig


class WordHead(Head):
    """A head that knows its labels by `LabelVectors` alone, so that they may change after training."""

    def __init__(
        self, config: WordHeadConfig, in_features: int, labels: int, word_vectors: Tensor | None = None
    ) -> None:
        super().__init__(config, in_features, labels)
        words = checked_words(word_vectors, labels, config.word_dim)
        self.register_buffer("word_vectors", words)
        self.word_dim = words.shape[1]

    def fold_constants(self, tokens: int) -> None:
        words = self.relabelling_words()
        for part in self.modules():
            if isinstance(part, LabelVectors):
                part.fold(words)
        self.word_vectors = None


class LabelVectors(nn.Module):
    """A vector for each label from its word vector at length 1, theta = W v; without `dim`, that word vector itself."""

    def __init__(self, word_dim: int, dim: int | None = None, bias: bool = False, relu: bool = False) -> None:
        super().__init__()
        self.project = nn.Identity() if dim is None else nn.Linear(word_dim, dim, bias)
        self.relu = relu
        self.folded: nn.Parameter | None = None  # [N, D]: nothing here depends on the image

    def forward(self, words: Tensor | None) -> Tensor:  # [N, d_w] -> [N, D]
        if self.folded is not None:
            return self.folded
        assert words is not None
        vectors: Tensor = self.project(F.normalize(words, dim=1))
        return F.relu(vectors) if self.relu else vectors

    def fold(self, words: Tensor) -> None:
        self.folded = nn.Parameter(self(words), requires_grad=False)


def region_features(in_features: int, dim: int | None) -> nn.Module:
    """A linear layer with ReLU on every region [B, T, C], or nothing."""
    return nn.Identity() if dim is None else nn.Sequential(nn.Linear(in_features, dim), nn.ReLU())
