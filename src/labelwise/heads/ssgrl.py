"""SSGRL (Chen et al., ICCV 2019): words find each label's features in the map, a gated graph network relates them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelwise.heads.base import AttendingHead, as_tokens
from labelwise.heads.folding import Known
from labelwise.heads.graph_configs import SsgrlConfig
from labelwise.heads.graphs import LabelClassifier, LabelGraphHead, without_self
from labelwise.heads.registry import register_head


@register_head(SsgrlConfig)
class SsgrlHead(LabelGraphHead, AttendingHead):
    """Semantic decoupling (section 3.2): for each label, attention over positions, guided by its word vector. Semantic
    interaction (section 3.3): the labels' features exchange messages over the graph of co-occurrence.

    Eq. 3's P and eq. 4's f_a are linear, one after the other: only their product is ever multiplied with the features
    of all labels at all positions. Their biases cancel in the softmax of eq. 5 and are left out.
    """

    adjacency: Tensor  # [N, N], P(c' | c)

    def build(self, config: SsgrlConfig, words: Tensor, cooccurrence: Tensor) -> None:
        in_features = self.in_features
        self.register_buffer("adjacency", without_self(cooccurrence))
        self.image_side = nn.Linear(in_features, config.dim, bias=False)  # U of eq. 3
        self.word_side: nn.Module = nn.Linear(words.shape[1], config.dim, bias=False)  # V
        self.score: nn.Module = Chain(
            nn.Linear(config.dim, config.dim, bias=False), nn.Linear(config.dim, 1, bias=False)
        )
        width = config.graph_dim or in_features
        self.reduce = nn.Linear(in_features, width) if config.graph_dim else nn.Identity()
        self.interact = GatedGraph(width, config.steps)
        self.output = nn.Linear(2 * width, width)  # f_o of eq. 9
        self.classifier = LabelClassifier(self.labels, width)

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        words = self.word_side(self.word_vectors)  # [N, d_1]
        joined = torch.tanh(self.image_side(tokens)[:, None] * words[:, None])  # eq. 3: [B, N, T, d_1]
        attention = (joined @ self.score()).squeeze(-1).softmax(dim=2)  # eq. 4 and 5: [B, N, T]
        features = attention @ self.reduce(tokens)  # eq. 6: [B, N, C]
        related = self.interact(features, self.adjacency)
        out = torch.tanh(self.output(torch.cat((related, features), dim=2)))  # o_c of eq. 9
        return self.classifier(out), attention

    def fold_constants(self, tokens: int) -> None:
        self.word_side = Known(self.word_side(self.word_vectors))
        self.score = Known(self.score())
        self.word_vectors = None


class Chain(nn.Module):
    """Two linear layers as the one that they make: its matrix, transposed [d, 1]."""

    def __init__(self, first: nn.Linear, second: nn.Linear) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self) -> Tensor:
        return (self.second.weight @ self.first.weight).T


class GatedGraph(nn.Module):
    """T steps of a gated graph network (eq. 7 and 8); its GRU is shared by all labels and steps."""

    def __init__(self, dim: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.from_messages = nn.Linear(2 * dim, 3 * dim)  # W_z, W_r, W_h
        self.from_state = nn.Linear(dim, 2 * dim, bias=False)  # U_z, U_r
        self.from_reset = nn.Linear(dim, dim, bias=False)  # U_h

    def forward(self, state: Tensor, adjacency: Tensor) -> Tensor:  # [B, N, d], [N, N] -> [B, N, d]
        for _ in range(self.steps):
            messages = torch.cat((adjacency @ state, adjacency.T @ state), dim=2)  # eq. 7
            update, reset, candidate = self.from_messages(messages).chunk(3, dim=2)
            update_state, reset_state = self.from_state(state).chunk(2, dim=2)
            update, reset = torch.sigmoid(update + update_state), torch.sigmoid(reset + reset_state)
            candidate = torch.tanh(candidate + self.from_reset(reset * state))
            state = (1 - update) * state + update * candidate  # eq. 8
        return state
