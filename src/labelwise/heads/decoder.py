"""Part 3 of a query head: the queries read the tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelwise.heads.config import DecoderConfig
from labelwise.heads.details import Recorder
from labelwise.heads.layers import DecoderLayer


class Decoder(nn.Module):
    def __init__(self, dim: int, feedforward: int, config: DecoderConfig) -> None:
        super().__init__()
        self.query_role = config.query_role
        self.dropout = config.dropout
        self.layers = nn.ModuleList(
            DecoderLayer(dim, config.attention_heads, feedforward, config.dropout, config.first_block)
            for _ in range(config.decoder_layers)
        )
        self.norm = nn.LayerNorm(dim) if config.final_norm else nn.Identity()

    def forward(
        self, queries: Tensor, tokens: Tensor, key_positions: Tensor | None, record: Recorder | None = None
    ) -> Tensor:
        """queries [K, D], tokens [B, T, D] -> [B, K, D]."""
        # Until the first cross-attention nothing depends on the image: a batch of one serves them all. Only dropout,
        # which draws another mask for every image, needs the whole batch.
        x = queries[None]
        if self.training and self.dropout:
            x = x.expand(tokens.shape[0], -1, -1)
        query_positions = None
        if self.query_role == "position":
            query_positions, x = queries[None], torch.zeros_like(x)
        for layer in self.layers:
            x = layer(x, tokens, query_positions, key_positions, record)
        out: Tensor = self.norm(x)
        return out
