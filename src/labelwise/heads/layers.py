"""Post-norm transformer layers, parameters named as in `nn.TransformerEncoderLayer` and `nn.TransformerDecoderLayer`.

Both take DETR's positions as options: they are added to the query and key side of an attention, never to the values or
to the residual.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.attention import Attention
from labelwise.heads.details import Recorder
from labelwise.heads.dropout import Dropout


class EncoderLayer(nn.Module):
    def __init__(self, dim: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = Attention(dim, heads, dropout)
        self.linear1 = nn.Linear(dim, feedforward)
        self.linear2 = nn.Linear(feedforward, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:  # [B, T, D]
        query = x if positions is None else x + positions
        x = self.norm1(x + self.dropout(self.self_attn(query, x, positions)))
        hidden = self.dropout(F.relu(self.linear1(x)))
        out: Tensor = self.norm2(x + self.dropout(self.linear2(hidden)))
        return out


class DecoderLayer(nn.Module):
    def __init__(self, dim: int, heads: int, feedforward: int, dropout: float, first_block: str) -> None:
        super().__init__()
        if first_block == "self-attention":
            self.self_attn = Attention(dim, heads, dropout)
        if first_block != "none":
            self.norm1 = nn.LayerNorm(dim)
        self.first_block = first_block
        self.multihead_attn = Attention(dim, heads, dropout)
        self.linear1 = nn.Linear(dim, feedforward)
        self.linear2 = nn.Linear(feedforward, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.norm3 = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,  # [B or 1, K, D]
        memory: Tensor,  # [B, T, D]
        query_positions: Tensor | None = None,  # [1, K, D]
        key_positions: Tensor | None = None,  # [1, T, D]
        record: Recorder | None = None,
    ) -> Tensor:
        x, query = self.before_reading(x, query_positions)
        return self.after_reading(x + self.dropout(self.multihead_attn(query, memory, key_positions, record)))

    def before_reading(self, x: Tensor, query_positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """The first block: the residual stream and the query that will read the tokens."""
        if self.first_block == "self-attention":
            query = x if query_positions is None else x + query_positions
            x = self.norm1(x + self.dropout(self.self_attn(query, x, query_positions)))
        elif self.first_block == "identity":
            x = self.norm1(x + self.dropout(x))
        return x, x if query_positions is None else x + query_positions

    def after_reading(self, x: Tensor) -> Tensor:  # [B, K, D]
        x = self.norm2(x)
        hidden = self.dropout(F.relu(self.linear1(x)))
        out: Tensor = self.norm3(x + self.dropout(self.linear2(hidden)))
        return out
