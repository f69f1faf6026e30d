"""The TResNets of ML-Decoder that timm does not have, registered there: `tresnet_s` and `tresnet_v2_xl`.

The paper's TResNet-M and TResNet-L are timm's `tresnet_m` and `tresnet_v2_l`. Its TResNet-XL is not timm's
`tresnet_xl`, which is version 1: table 10 prints 103.8 GFLOPs at 640 pixels, where timm's has 125.5 with the same head.
It is version 2, with bottleneck blocks in all stages, and the number of blocks is the one in the authors' code.
"""

from __future__ import annotations

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.tresnet import TResNet, checkpoint_filter_fn

__all__: list[str] = []  # timm's decorator adds the names

# Inputs in [0, 1], as for all TResNets. Nobody has published these two without a head (see `lw.load_checkpoint`).
_INPUT = {"input_size": (3, 224, 224), "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "interpolation": "bilinear"}
_LAYERS = {"first_conv": "body.conv1.conv", "classifier": "head.fc", "num_classes": 1000, "pool_size": (7, 7)}
default_cfgs = generate_default_cfgs({name: {**_INPUT, **_LAYERS} for name in ("tresnet_s", "tresnet_v2_xl")})


@register_model  # type: ignore[untyped-decorator]
def tresnet_s(pretrained: bool = False, **options: Any) -> TResNet:
    """TResNet-S, the smallest of ML-Decoder's figure 5."""
    return _create("tresnet_s", pretrained, layers=[3, 4, 6, 3], **options)


@register_model  # type: ignore[untyped-decorator]
def tresnet_v2_xl(pretrained: bool = False, **options: Any) -> TResNet:
    """TResNet-XL of ML-Decoder's table 10."""
    return _create("tresnet_v2_xl", pretrained, layers=[3, 8, 34, 5], v2=True, **options)


def _create(name: str, pretrained: bool, **options: Any) -> TResNet:
    model: TResNet = build_model_with_cfg(
        TResNet,
        name,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": (1, 2, 3, 4), "flatten_sequential": True},
        **options,
    )
    return model
