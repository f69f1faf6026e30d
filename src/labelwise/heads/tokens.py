"""Part 1 of a query head: the backbone's map becomes tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.errors import LabelwiseError
from labelwise.heads.config import DecoderConfig, TokensConfig
from labelwise.heads.layers import EncoderLayer


def sine_positions(height: int, width: int, dim: int, like: Tensor) -> Tensor:
    """DETR's 2-D sine positions [H * W, D]: half of the channels tell the row, half the column.

    Rows and columns are scaled to (0, 2 pi], so maps of different sizes share one coordinate system.
    """
    half = dim // 2
    frequency = 10000 ** (torch.arange(half, device=like.device).div(2, rounding_mode="floor") * 2 / half)  # [D/2]

    def axis(length: int) -> Tensor:
        place = torch.arange(1, length + 1, device=like.device) / length * (2 * math.pi)
        angle = place[:, None] / frequency  # [length, D/2]
        return torch.stack((angle[:, 0::2].sin(), angle[:, 1::2].cos()), dim=2).flatten(1)

    rows = axis(height)[:, None, :].expand(height, width, half)
    columns = axis(width)[None, :, :].expand(height, width, half)
    return torch.cat((rows, columns), dim=2).flatten(0, 1).to(like.dtype)


class Tokens(nn.Module):
    def __init__(
        self, in_features: int, dim: int, feedforward: int, config: TokensConfig, layer: DecoderConfig
    ) -> None:
        super().__init__()
        if config.positions != "none" and dim % 4:
            raise LabelwiseError(f"sine positions need a dim divisible by 4, not {dim}; choose another dim")
        self.dim = dim
        self.positions = config.positions
        self.relu = config.token_relu
        self.dropout = config.token_dropout
        self.project = nn.Linear(in_features, dim)  # a 1x1 convolution on [B, C, H, W]
        self.encoder = nn.ModuleList(
            EncoderLayer(dim, layer.attention_heads, feedforward, layer.dropout) for _ in range(config.encoder_layers)
        )

    def forward(self, x: Tensor, grid: tuple[int, int] | None, whole: bool = False) -> tuple[Tensor, Tensor | None]:
        """[B, T, C] on a `grid` (H, W) -> tokens [B, T, D] and the positions [1, T, D] that attention adds to keys.

        In training some tokens may be left out, which `whole` prevents; each image then has positions of its own.
        """
        kept = None if whole or not (self.training and self.dropout) else _random_places(x, self.dropout)  # [B, t, 1]
        if kept is not None:
            x = x.take_along_dim(kept, dim=1)
        tokens = self.project(x)
        if self.relu:
            tokens = F.relu(tokens)
        positions = None
        if self.positions != "none":
            if grid is None:
                raise LabelwiseError("this head adds 2-D positions: give it the map [B, C, H, W], not tokens [B, T, C]")
            positions = sine_positions(*grid, self.dim, tokens)[None]
            if kept is not None:
                positions = positions.take_along_dim(kept, dim=1)
        if self.positions == "input":
            tokens, positions = tokens + positions, None
        for layer in self.encoder:
            tokens = layer(tokens, positions)
        return tokens, positions


def _random_places(x: Tensor, dropout: float) -> Tensor:
    """Which of the tokens [B, T, C] stay: [B, t, 1], at least one."""
    stay = max(1, round(x.shape[1] * (1 - dropout)))
    return torch.rand(x.shape[:2], device=x.device).argsort(dim=1)[:, :stay, None]
