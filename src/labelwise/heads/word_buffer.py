"""The word vectors that a head keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from labelwise.errors import LabelwiseError


def checked_words(vectors: Tensor | None, labels: int, word_dim: int | None) -> Tensor:
    """The vectors [N, d_w] as given, or zeros to be filled from a state dict."""
    if word_dim is None:
        raise LabelwiseError("heads on words need word_vectors, a tensor [labels, length], one row for each label")
    if vectors is None:
        return torch.zeros(labels, word_dim)
    if vectors.shape != (labels, word_dim):
        raise LabelwiseError(f"word_vectors must be [{labels}, {word_dim}], not {list(vectors.shape)}")
    return vectors.detach().float().clone()
