"""Every family of timm that the papers and users need, as one map [B, C, h, w], with random weights."""

from __future__ import annotations

import pytest
import torch

from labelwise.backbones import Backbone, BackboneConfig, list_backbones
from labelwise.core.errors import LabelwiseError
from labelwise.data.preprocessing import Preprocessing
from labelwise.features.store import describe_store

# name, input size, channels, stride of the last map
FAMILIES = [
    ("resnet10t", 96, 512, 32),
    ("resnet18", 96, 512, 32),
    ("tresnet_m", 96, 2048, 32),
    ("tresnet_l", 64, 2432, 32),
    ("tresnet_xl", 64, 2656, 32),
    ("convnext_atto", 96, 320, 32),
    ("swin_tiny_patch4_window7_224", 224, 768, 32),
    ("vit_tiny_patch16_224", 96, 192, 16),
    ("vit_small_patch14_dinov2", 70, 384, 14),
    ("vit_small_patch16_dinov3", 96, 384, 16),
    ("vit_base_patch16_siglip_224", 96, 768, 16),
    ("tf_efficientnet_lite0", 96, 1280, 32),
    ("mobilenetv3_small_100", 96, 576, 32),
]


@pytest.mark.parametrize(("name", "size", "channels", "stride"), FAMILIES)
def test_each_family_gives_one_map_and_uses_all_its_parameters(
    name: str, size: int, channels: int, stride: int
) -> None:
    backbone = Backbone(BackboneConfig(name=name, size=size))
    features = backbone(torch.randn(1, 3, size, size))
    assert features.shape == (1, channels, size // stride, size // stride)
    assert backbone.channels == channels
    assert backbone.config.size == size
    features.square().mean().backward()
    unused = [n for n, p in backbone.named_parameters() if p.requires_grad and p.grad is None]
    assert unused == []  # DDP stops on parameters that get no gradient


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_other_image_sizes_than_the_one_it_was_made_for(name: str) -> None:
    backbone = Backbone(BackboneConfig(name=name)).eval()
    assert backbone(torch.randn(1, 3, 256, 320)).isfinite().all()


@pytest.mark.parametrize(("name", "stage", "channels", "stride"), [("resnet18", -2, 256, 16), ("resnet18", 2, 128, 8)])
def test_earlier_stages(name: str, stage: int, channels: int, stride: int) -> None:
    whole = Backbone(BackboneConfig(name=name, size=64))
    backbone = Backbone(BackboneConfig(name=name, stage=stage, size=64))
    assert backbone(torch.randn(1, 3, 64, 64)).shape == (1, channels, 64 // stride, 64 // stride)
    assert sum(p.numel() for p in backbone.parameters()) < sum(p.numel() for p in whole.parameters()) / 2


def test_the_final_projection_of_efficientnet_is_not_lost() -> None:
    """Its last stage has 320 channels; the features its weights were trained for have 1280."""
    backbone = Backbone(BackboneConfig(name="tf_efficientnet_lite0", size=64)).eval()
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(backbone(x), backbone.model.forward_features(x))
    earlier = Backbone(BackboneConfig(name="tf_efficientnet_lite0", size=64, stage=-2))
    assert earlier.channels == 112


def test_preprocessing_is_the_weights_own() -> None:
    lite = Backbone(BackboneConfig(name="tf_efficientnet_lite2")).preprocessing()
    assert (lite.size, lite.mean, lite.std, lite.resize) == (260, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "squash")
    plain = Backbone(BackboneConfig(name="tresnet_m", size=448)).preprocessing()
    assert (plain.size, plain.mean, plain.std) == (448, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "resnt50"}, r"unknown backbone 'resnt50'; did you mean 'resnet50'"),
        ({"name": "resnet50.nope"}, r"has no weights 'nope'; it has: .*a1_in1k"),
        ({"name": "vit_tiny_patch16_224", "size": 100}, "multiples of 16, not 100"),
        ({"name": "resnet18", "stage": 7}, "has no stage 7; it has 5 stages"),
    ],
)
def test_mistakes_are_named(config: dict[str, object], message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        Backbone(BackboneConfig.model_validate(config))


def test_listing_takes_wildcards() -> None:
    assert {"resnet10t", "resnet50"} <= set(list_backbones("resnet*"))


def test_stochastic_depth_is_for_training_alone() -> None:
    torch.manual_seed(0)
    plain = Backbone(BackboneConfig(name="resnet10t", size=64)).eval()
    deep = Backbone(BackboneConfig(name="resnet10t", size=64, drop_path=0.5))
    # timm's ResNets begin with blocks that add nothing, so that leaving one out would not show
    deep.load_state_dict({name: t if t.dim() != 1 else torch.rand_like(t) for name, t in plain.state_dict().items()})
    plain.load_state_dict(deep.state_dict())
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(deep.eval()(images), plain(images))
    deep.train()
    assert len({deep(images).mean().item() for _ in range(8)}) > 1
    with pytest.raises(LabelwiseError, match="'vgg11' has no stochastic depth; leave out drop_path"):
        Backbone(BackboneConfig(name="vgg11", drop_path=0.1))


def test_options_that_change_no_map_leave_its_store_where_it_is() -> None:
    """Features that were stored before these options existed are still found."""
    for rate in (0.0, 0.2):
        about = describe_store(Backbone(BackboneConfig(name="resnet10t", drop_path=rate)), Preprocessing())
        assert set(about["backbone"]) == {"name", "stage", "size"}
        assert "crop_ratio" not in about["preprocessing"]
    cropped = Preprocessing(resize="crop", crop_ratio=0.9)
    assert describe_store(torch.nn.Identity(), cropped)["preprocessing"]["crop_ratio"] == 0.9
