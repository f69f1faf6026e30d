"""The two shapes in which a head takes features: a map [B, C, H, W] or tokens [B, T, C]."""

from __future__ import annotations

from torch import Tensor

from labelwise.errors import LabelwiseError


def as_tokens(x: Tensor, in_features: int) -> tuple[Tensor, tuple[int, int] | None]:
    """Tokens [B, T, C], and the grid (H, W) they come from if it is known."""
    if x.dim() == 4 and x.shape[1] == in_features:
        return x.flatten(2).transpose(1, 2), (x.shape[2], x.shape[3])
    if x.dim() == 3 and x.shape[2] == in_features:
        return x, None
    raise LabelwiseError(
        f"this head takes a map [B, {in_features}, H, W] or tokens [B, T, {in_features}], not {list(x.shape)}"
    )
