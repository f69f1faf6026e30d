"""Which timm model a public state dict belongs to, told from the names and shapes of its tensors."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping

from torch import Tensor

from labelwise.core.errors import LabelwiseError

# Blocks of each stage.
_Names = dict[tuple[int, ...], str]
_TRESNETS: _Names = {
    (3, 4, 6, 3): "tresnet_s",
    (3, 4, 11, 3): "tresnet_m",
    (4, 5, 18, 3): "tresnet_l",
    (4, 5, 24, 3): "tresnet_xl",
    (3, 4, 23, 3): "tresnet_v2_l",
    (3, 8, 34, 5): "tresnet_v2_xl",
}
_RESNETS: _Names = {(2, 2, 2, 2): "resnet18", (3, 4, 6, 3): "resnet34"}
_BOTTLENECK_RESNETS: _Names = {(3, 4, 6, 3): "resnet50", (3, 4, 23, 3): "resnet101", (3, 8, 36, 3): "resnet152"}
# Width of the first stage, entries of a position table, (2 x window - 1)^2, and blocks of the third stage.
_SWINS = {
    (96, 169, 6): ("swin_tiny_patch4_window7_224", 224),
    (96, 169, 18): ("swin_small_patch4_window7_224", 224),
    (128, 169, 18): ("swin_base_patch4_window7_224", 224),
    (128, 529, 18): ("swin_base_patch4_window12_384", 384),
    (192, 169, 18): ("swin_large_patch4_window7_224", 224),
    (192, 529, 18): ("swin_large_patch4_window12_384", 384),
}
_VITS = {768: "vit_base_patch16_224", 1024: "vit_large_patch16_224"}


def recognised_backbone(state: Mapping[str, Tensor]) -> tuple[str, int | None]:
    """The name in timm of the network with this state dict, and its input size in pixels if that is fixed.

    Args:
        state: Without a classifier, in the layout of the authors of TResNet, Swin, or of torchvision or timm.

    >>> from torchvision.models import resnet34
    >>> recognised_backbone(resnet34().state_dict())
    ('resnet34', None)
    """
    name, size = None, None
    if any(key.startswith("body.conv1.") for key in state):
        name = _TRESNETS.get(_blocks(state))
    elif "layer1.0.conv1.weight" in state:
        name = (_BOTTLENECK_RESNETS if "layer1.0.conv3.weight" in state else _RESNETS).get(_blocks(state))
    elif (table := state.get("layers.0.blocks.0.attn.relative_position_bias_table")) is not None:
        width = len(state.get("patch_embed.proj.bias", ()))
        blocks = sum(re.fullmatch(r"layers\.2\.blocks\.\d+\.norm1\.weight", key) is not None for key in state)
        name, size = _SWINS.get((width, len(table), blocks), (None, None))
    elif (positions := state.get("pos_embed")) is not None and "blocks.0.attn.qkv.weight" in state:
        name, size = _VITS.get(positions.shape[-1]), 16 * math.isqrt(positions.shape[1] - 1)  # one is the class token
    if name is None:
        raise LabelwiseError(
            f"the weights are of no backbone that can be recognised (TResNet, ResNet, Swin, ViT-B/16 or L/16): "
            f"{len(state)} tensors, e.g. {next(iter(state), 'none')!r}"
        )
    return name, size


def _blocks(state: Mapping[str, Tensor]) -> tuple[int, ...]:
    """The number of blocks in `layer1`, `layer2`, ..."""
    found: dict[str, set[str]] = defaultdict(set)
    for key in state:
        if match := re.match(r"(?:body\.)?layer(\d)\.(\d+)\.", key):
            found[match[1]].add(match[2])
    return tuple(len(found[stage]) for stage in sorted(found))
