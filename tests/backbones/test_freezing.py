"""What stays as it is when a part of a backbone is frozen, whatever its family; the rest learns."""

from __future__ import annotations

import pytest
import torch

from labelwise.backbones import Backbone, BackboneConfig

# name: parameters of a frozen and of a learning layer
FAMILIES = {
    "tf_efficientnet_lite0": ("blocks.4.0.conv_pw.weight", "blocks.5.0.conv_pw.weight"),
    "resnet10t": ("layer2.0.conv1.weight", "layer3.0.bn2.bias"),
    "vit_tiny_patch16_224": ("pos_embed", "blocks.11.mlp.fc1.weight"),
    "convnext_atto": ("stages.1.blocks.0.conv_dw.weight", "stages.2.downsample.1.weight"),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_early_layers_stay_and_late_ones_learn(name: str) -> None:
    torch.manual_seed(0)
    backbone = Backbone(BackboneConfig(name=name, size=64))
    backbone.freeze_early()
    backbone.train()
    before = {key: tensor.clone() for key, tensor in backbone.model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in backbone.parameters() if p.requires_grad], lr=1.0)
    backbone(torch.randn(2, 3, 64, 64)).square().mean().backward()
    optimizer.step()
    after = backbone.model.state_dict()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    frozen, learning = FAMILIES[name]
    assert frozen not in changed
    assert learning in changed
    # Batch norms keep their statistics everywhere; behind the frozen layers they learn their weights.
    assert not any("running" in key for key in changed)


def test_query2labels_freezing_on_a_resnet() -> None:
    """As in its code: only `layer2`, `layer3` and `layer4` learn, and of these no batch norm."""
    torch.manual_seed(0)
    backbone = Backbone(BackboneConfig(name="resnet18", size=64))
    backbone.freeze_stem_and_norms()
    backbone.train()
    learning = {name for name, parameter in backbone.model.named_parameters() if parameter.requires_grad}
    convolutions = {name for name, p in backbone.model.named_parameters() if p.dim() == 4}
    assert learning == {name for name in convolutions if name.startswith(("layer2.", "layer3.", "layer4."))}
    before = {key: tensor.clone() for key, tensor in backbone.model.named_buffers()}
    backbone(torch.randn(2, 3, 64, 64))
    assert all(torch.equal(before[key], tensor) for key, tensor in backbone.model.named_buffers())


def test_query2labels_freezing_on_a_tresnet() -> None:
    """No gradient for stem and first stage; all norms go on with the statistics of the batches."""
    torch.manual_seed(0)
    backbone = Backbone(BackboneConfig(name="tresnet_s", size=64))
    backbone.freeze_stem()
    backbone.train()
    learning = {name for name, parameter in backbone.model.named_parameters() if parameter.requires_grad}
    stages = tuple(f"body.layer{stage}." for stage in (2, 3, 4))
    late = {name for name, _ in backbone.model.named_parameters() if name.startswith(stages)}
    assert learning == late
    before = backbone.model.body.conv1.bn.running_mean.clone()
    backbone(torch.randn(2, 3, 64, 64))
    assert not torch.equal(backbone.model.body.conv1.bn.running_mean, before)
