"""What the heads are compared with, by name: timm's ML-Decoder, repaired, and HSQ as its paper prints it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from timm.layers.ml_decoder import MLDecoder
from torch import Tensor, nn

from labelwise import heads
from labelwise.heads.base import Recorder
from labelwise.heads.experts import HybridSharing
from tests.oracles.literal import LiteralHybridSharing, literal_copy

OPTIMISED = " optimised"


class RepairedMLDecoder(MLDecoder):  # type: ignore[misc]  # timm carries no types
    """timm's head with its own arithmetic. Its forward raises an error on today's PyTorch, because the layers sit in an
    `nn.TransformerDecoder` that calls them with arguments they do not know: here they are called one after the other.
    """

    def forward(self, x: Tensor) -> Tensor:
        memory = self.embed_standart(x.flatten(2).transpose(1, 2)).relu_().transpose(0, 1)  # [T, B, D]
        h = self.query_embed.weight.unsqueeze(1).expand(-1, x.shape[0], -1)
        for layer in self.decoder.layers:
            h = layer(h, memory)
        h = h.transpose(0, 1)  # [B, K, D]
        out = torch.zeros(h.shape[0], h.shape[1], self.duplicate_factor, device=h.device, dtype=h.dtype)
        for group in range(self.embed_len_decoder):
            out[:, group, :] = torch.matmul(h[:, group, :], self.duplicate_pooling[group, :, :])
        logits: Tensor = out.flatten(1)[:, : self.num_classes] + self.duplicate_pooling_bias
        return logits


class LiteralExperts(nn.Module):
    """Algorithm 1, loop by loop, in the place of a head's batched experts."""

    def __init__(self, layers: LiteralHybridSharing) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, record: Recorder | None = None, queries: Tensor | None = None) -> Tensor:
        task, _ = self.layers(x.transpose(0, 1))  # [K, B, d] -> [B, K, d_o]
        out: Tensor = task.transpose(0, 1)
        return out


def literal_hsq(head: heads.Head) -> nn.Module:
    """An HSQ head with linear experts whose hybrid sharing layers are replaced by Algorithm 1 with the same weights."""
    literal = copy.deepcopy(head)
    assert isinstance(literal, heads.QueryHead)
    assert isinstance(literal.experts, HybridSharing)
    config = literal.config.experts
    layers = literal_copy(literal.experts, literal.groups, config.shared_experts, config.task_experts)
    literal.experts = LiteralExperts(layers)  # type: ignore[assignment]
    return literal


def create_head(name: str, channels: int, labels: int, options: dict[str, Any], tokens: int = 49) -> nn.Module:
    """A preset, a preset + " optimised", "timm ml-decoder" or "literal hsq"."""
    if name == "timm ml-decoder":
        return RepairedMLDecoder(labels, options.get("groups", -1), options.get("dim", 768), channels)
    if name == "literal hsq":
        return literal_hsq(heads.create("hsq", in_features=channels, labels=labels, **options))
    head = heads.create(name.removesuffix(OPTIMISED), in_features=channels, labels=labels, **options)
    return heads.optimize(head, tokens) if name.endswith(OPTIMISED) else head
