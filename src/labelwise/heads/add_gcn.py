"""ADD-GCN (Ye et al., ECCV 2020): a graph of the labels that is made anew for every image."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import AttendingHead, as_tokens
from labelwise.heads.graph_configs import AddGcnConfig
from labelwise.heads.graphs import LEAK, DynamicGraph, LabelClassifier, LabelNodes
from labelwise.heads.registry import register_head


@register_head(AddGcnConfig)
class AddGcnHead(AttendingHead):
    """The semantic attention module finds a vector for each label (section 3.2), the dynamic GCN relates them over a
    static and a dynamic graph (section 3.3); the answer is the mean of its logits and of the activation maps' maxima.

    Both residuals are the authors' code's. Its batch norm in the dynamic graph is left out: the paper has none.
    """

    def __init__(self, config: AddGcnConfig, in_features: int, labels: int) -> None:
        super().__init__(config, in_features, labels)
        dim = config.dim
        self.activation = nn.Linear(in_features, labels, bias=False)  # of the maps M
        self.nodes = LabelNodes(in_features, dim)
        bound = labels**-0.5
        self.static_adjacency = nn.Parameter(torch.empty(labels, labels).uniform_(-bound, bound))  # A_s
        self.static = nn.Linear(dim, dim)  # W_s
        self.dynamic_adjacency = DynamicGraph(dim, dim, labels)
        self.dynamic = nn.Linear(dim, dim)  # W_d
        self.classifier = LabelClassifier(labels, dim)

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        activation = self.activation(tokens).transpose(1, 2)  # [B, N, T]
        masks = activation.sigmoid()  # M
        nodes = self.nodes(masks, tokens)  # V: [B, N, D]
        hidden = nodes + F.leaky_relu(self.static_adjacency @ self.static(nodes), LEAK)  # H
        adjacency = self.dynamic_adjacency(hidden, hidden.mean(dim=1))  # A_d: [B, N, N]
        related = nodes + F.leaky_relu(adjacency @ self.dynamic(hidden), LEAK)  # Z
        return (self.classifier(related) + activation.amax(dim=2)) / 2, masks

    def fold_constants(self, tokens: int) -> None:
        self.nodes.choose_order(tokens, self.labels)
