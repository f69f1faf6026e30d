"""TDRG (Zhao et al., ICCV 2021): a transformer on the map, and a graph of the labels that it guides."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import AttendingHead, as_tokens
from labelwise.heads.graph_configs import TdrgConfig
from labelwise.heads.graphs import LEAK, DynamicGraph, LabelClassifier, LabelNodes
from labelwise.heads.layers import EncoderLayer
from labelwise.heads.registry import register_head


@register_head(TdrgConfig)
class TdrgHead(AttendingHead):
    """The structural relation graph is a transformer over positions; the semantic relation graph relates labels, with
    the transformer's features as guidance, through which no gradient flows. The answer is a weighted mean of both.

    In training, each of them answers alone too, and so do the label maps, the semantic-aware constraint: `forward` then
    gives four answers for every image, one batch after the other, as the authors' code adds up four losses.

    What differs from the paper: one scale, where it has three with a cross-scale attention between them. No positions,
    as in the authors' code; ReLU in the transformer, which has GELU there; no batch norm in the guidance.
    """

    config: TdrgConfig

    def __init__(self, config: TdrgConfig, in_features: int, labels: int) -> None:
        super().__init__(config, in_features, labels)
        dim = config.dim
        self.project = nn.Linear(in_features, dim)
        layer = dim, config.attention_heads, config.feedforward, config.dropout
        self.encoder = nn.ModuleList(EncoderLayer(*layer) for _ in range(config.encoder_layers))
        self.structural = nn.Linear(dim, labels)
        self.activation = nn.Linear(in_features, labels, bias=False)  # label maps
        self.nodes = LabelNodes(in_features, dim)
        self.guide = nn.Linear(dim, dim)
        self.joint_correlation = DynamicGraph(2 * dim, dim, labels)
        self.relate = nn.Linear(2 * dim, 2 * dim)
        self.semantic = LabelClassifier(labels, 2 * dim)

    def training_targets(self, targets: Tensor) -> Tensor:
        return targets.repeat(4, 1) if self.training else targets

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        structure = self.project(tokens)  # [B, T, D]
        for layer in self.encoder:
            structure = layer(structure)
        structural = self.structural(structure.amax(dim=1))  # [B, N]

        activation = self.activation(tokens).transpose(1, 2)  # [B, N, T]
        masks, guidance = activation.sigmoid(), structure.detach()
        guided = self.guide((masks @ guidance).detach())
        nodes = torch.cat((self.nodes(masks, tokens), guided), dim=2)  # [B, N, 2 D]
        adjacency = self.joint_correlation(nodes, guidance.mean(dim=1))  # [B, N, N]
        semantic = self.semantic(nodes + F.leaky_relu(adjacency @ self.relate(nodes), LEAK))  # [B, N]

        weight = self.config.structural_weight
        fused = weight * structural + (1 - weight) * semantic
        if not self.training:
            return fused, masks
        highest = activation.topk(-(-tokens.shape[1] // 20), dim=2).values  # 5 % of the positions, at least one
        return torch.cat((fused, structural, semantic, highest.mean(dim=2))), masks  # [4 B, N]

    def fold_constants(self, tokens: int) -> None:
        self.nodes.choose_order(tokens, self.labels)
