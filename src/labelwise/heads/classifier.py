"""Part 5 of a query head: K refined queries -> N logits, g = ceil(N / K) for each query."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelwise.heads.config import ClassifierConfig
from labelwise.heads.expert_banks import per_query_mlp


class GroupClassifier(nn.Module):
    """ML-Decoder's group fully-connected layer (eq. 3) as one batched product. With g = 1: one vector per label."""

    def __init__(self, queries: int, dim: int, labels: int, group_size: int, hidden: int | None) -> None:
        super().__init__()
        self.weights = per_query_mlp(queries, dim, hidden, group_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(labels))

    def forward(self, x: Tensor, words: Tensor | None) -> Tensor:  # [K, B, D] -> [K, B, g]
        out: Tensor = self.weights(x)
        return out


class SharedClassifier(nn.Module):
    """The same weights for every query, so that their number and order may change after training (section 2.3.3)."""

    def __init__(self, dim: int, group_size: int, hidden: int | None) -> None:
        super().__init__()
        last = nn.Linear(hidden or dim, group_size, bias=False)
        self.weights = last if hidden is None else nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), last)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, words: Tensor | None) -> Tensor:
        out: Tensor = self.weights(x)
        return out


class WordClassifier(nn.Module):
    """Weights made from the labels' word vectors, W_k = W_b M_k (eq. 6), multiplied from the left to stay small."""

    def __init__(self, dim: int, word_dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, word_dim, bias=False)  # W_b
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        by_query = words.unflatten(0, (x.shape[0], -1)).transpose(1, 2)  # M_k: [K, d_w, g]
        return torch.bmm(self.project(x), by_query)


def create_classifier(
    queries: int, dim: int, labels: int, group_size: int, word_dim: int | None, config: ClassifierConfig
) -> GroupClassifier | SharedClassifier | WordClassifier:
    if config.classifier == "words":
        assert word_dim is not None
        return WordClassifier(dim, word_dim)
    if config.classifier == "shared":
        return SharedClassifier(dim, group_size, config.classifier_hidden)
    return GroupClassifier(queries, dim, labels, group_size, config.classifier_hidden)
