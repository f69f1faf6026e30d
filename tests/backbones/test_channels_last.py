"""Convolutions' weights with their channels last: the same numbers, whatever else the model holds."""

from __future__ import annotations

import pytest
import torch

from labelwise.backbones import Backbone, BackboneConfig
from labelwise.backbones.timm_backbone import put_channels_last


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "lambda_resnet26t"])  # the last has 3-D ones
def test_weights_keep_their_values(name: str) -> None:
    torch.manual_seed(0)
    backbone = Backbone(BackboneConfig(name=name, size=256 if name.startswith("lambda") else 64)).eval()
    images = torch.randn(1, 3, backbone.config.size or 64, backbone.config.size or 64)
    with torch.inference_mode():
        before = backbone(images)
        put_channels_last(backbone)
        torch.testing.assert_close(backbone(images), before, atol=1e-4, rtol=1e-4)
    weights = [parameter for parameter in backbone.parameters() if parameter.dim() == 4]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
