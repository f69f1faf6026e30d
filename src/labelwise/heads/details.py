"""What a head can tell beside its logits: where each query looked and which experts each label relied on."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class HeadDetails:
    logits: Tensor  # [B, N]
    attention_layers: tuple[Tensor, ...]  # per decoder layer [B, heads, K, H, W], rows sum to 1 over H, W
    gates: tuple[Tensor, ...]  # per expert layer [B, K, n_t + n_s]: the label's own experts first, then the shared ones
    shared: Tensor | None  # [B, K, d_o], HSQ's O_s, when `shared_stream` is on
    label_query: Tensor  # [N], the query that answers for each label

    @property
    def attention(self) -> Tensor:
        """The last layer's cross-attention, averaged over heads: [B, K, H, W]."""
        return self.attention_layers[-1].mean(dim=1)

    @property
    def label_attention(self) -> Tensor:
        """`attention` of the query that answers for each label: [B, N, H, W]."""
        return self.attention[:, self.label_query]


@dataclass
class Recorder:
    """Handed down through the modules of a head; each adds what it saw."""

    attention: list[Tensor] = field(default_factory=list)  # [B, heads, K, T]
    gates: list[Tensor] = field(default_factory=list)  # [K, B, n_t + n_s]
    shared: Tensor | None = None  # [K, B, d_o]
