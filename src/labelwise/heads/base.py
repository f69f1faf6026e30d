"""What a head can tell beside its logits: where each query looked and which experts each label relied on."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from labelwise.core.errors import LabelwiseError


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


def as_tokens(x: Tensor, in_features: int) -> tuple[Tensor, tuple[int, int] | None]:
    """Tokens [B, T, C], and the grid (H, W) they come from if it is known."""
    if x.dim() == 4 and x.shape[1] == in_features:
        return x.flatten(2).transpose(1, 2), (x.shape[2], x.shape[3])
    if x.dim() == 3 and x.shape[2] == in_features:
        return x, None
    raise LabelwiseError(
        f"this head takes a map [B, {in_features}, H, W] or tokens [B, T, {in_features}], not {list(x.shape)}"
    )
