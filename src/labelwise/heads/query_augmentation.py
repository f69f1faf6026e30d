"""ML-Decoder's query augmentations (section 2.3.3, figure 8): a head learns from words that it will never be asked for.

The paper says that random queries get "a positive ground truth label". We read it as it stands: they pass through the
same classifier as the labels' queries and their target is 1, whatever the image shows. They enter the loss as further
columns: `with_random_targets`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def noisy(words: Tensor, noise: float) -> Tensor:
    """Word vectors [N, d_w] plus normal noise, anew in each batch; `noise` is relative to their root mean square."""
    return words + noise * _size(words) * torch.randn_like(words) if noise else words


def random_words(words: Tensor, number: int) -> Tensor:
    """`number` vectors of normal noise, as long as the word vectors are on average: [number, d_w]."""
    return _size(words) * torch.randn(number, words.shape[1], dtype=words.dtype, device=words.device)


def _size(words: Tensor) -> Tensor:
    return words.square().mean().sqrt()


def with_random_targets(logits: Tensor, targets: Tensor) -> Tensor:
    """Targets [B, N] as wide as the logits of a head in training: the columns of random queries are present.

    >>> with_random_targets(torch.zeros(2, 5), torch.tensor([[0, 1, -1], [1, 0, 0]])).tolist()
    [[0, 1, -1, 1, 1], [1, 0, 0, 1, 1]]
    """
    return F.pad(targets, (0, logits.shape[1] - targets.shape[1]), value=1)
