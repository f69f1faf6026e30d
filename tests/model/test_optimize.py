"""Optimised models give the same answers and leave the original alone."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.model.optimize import fold_batch_norms

TOLERANCE = {"atol": 1e-4, "rtol": 0}


def with_statistics(network: nn.Module) -> nn.Module:
    """Batch norms as after training: with statistics and weights of their own."""
    torch.manual_seed(2)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, std=0.2)
            nn.init.uniform_(part.running_var, 0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.2)
    return network


@pytest.mark.parametrize("name", ["test_resnet", "tf_efficientnet_lite0", "mobilenetv3_small_050", "repvgg_a0"])
def test_batch_norms_disappear_and_nothing_else_changes(name: str) -> None:
    network = with_statistics(lw.create_model(name, "gap", 3, weights="none", size=64).backbone.train())
    before, x = copy.deepcopy(network.state_dict()), torch.randn(2, 3, 64, 64)
    folded = fold_batch_norms(network, torch.rand(2, 3, 64, 64))
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())
    assert network.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in network.state_dict().items())
    expected = network.eval()(x)
    torch.testing.assert_close(folded(x), expected, atol=1e-4 * float(expected.detach().abs().max()), rtol=1e-3)


class Branching(nn.Module):
    """The convolution's output goes round its norm as well; another's weights are standardised first."""

    class Standardised(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            weight = (self.weight - self.weight.mean()) / self.weight.std()
            return F.conv2d(x, weight, self.bias)

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.odd, self.odd_norm = self.Standardised(4, 4, 1), nn.BatchNorm2d(4)
        self.last, self.last_norm = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        y = y + self.norm(y)
        return self.last_norm(self.last(self.odd_norm(self.odd(y))))


def test_only_what_may_be_folded_is_folded() -> None:
    network, x = with_statistics(Branching()), torch.randn(2, 3, 5, 5)
    folded = fold_batch_norms(network, torch.rand(2, 3, 5, 5))
    assert isinstance(folded.norm, nn.BatchNorm2d)
    assert isinstance(folded.odd_norm, nn.BatchNorm2d)
    assert isinstance(folded.last_norm, nn.Identity)
    torch.testing.assert_close(folded(x), network.eval()(x), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("backbone", "size"), [("test_resnet", 64), ("vit_tiny_patch16_224", 64), ("swin_tiny_patch4_window7_224", 64)]
)
def test_a_model_predicts_and_explains_and_is_no_model_to_keep(backbone: str, size: int, tmp_path: Path) -> None:
    model = lw.create_model(backbone, "hsq", ["cat", "dog", "sofa"], weights="none", size=size, dim=32)
    with_statistics(model).eval()
    fast, images = model.optimize(), torch.randn(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(fast(images), model(images), **TOLERANCE)
        mine, theirs = fast.details(images).label_attention, model.details(images).label_attention
    torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)
    assert fast.labels == model.labels
    assert fast.eval() is fast
    # A `Model` for the tagger, in NumPy.
    torch.testing.assert_close(torch.from_numpy(fast.logits(images.numpy())), model(images), **TOLERANCE)
    evidence = fast.evidence(images.numpy())
    maps = evidence.maps()
    assert maps is not None
    torch.testing.assert_close(torch.from_numpy(maps)[:, evidence.label_query], mine)
    with pytest.raises(LabelwiseError, match=r"an optimised model cannot be trained.*the model that it was made from"):
        fast.train()
    # `save(compact=True)` once wrote a folder that cannot be loaded, and `from_pretrained` was inherited and failed.
    assert not isinstance(fast, lw.LabelModel)
    for name in ("save", "save_pretrained", "from_pretrained", "push_to_hub", "with_labels", "optimize"):
        assert not hasattr(fast, name), name
    model.save(tmp_path / "model")  # the original can still do it all
    assert model.train().training


@pytest.mark.slow
def test_compiled() -> None:
    model = lw.create_model("test_resnet", "hsq", 5, weights="none", size=64, dim=32).eval()
    fast = model.optimize(compile=True)
    with torch.inference_mode():
        for batch in (2, 3):
            images = torch.randn(batch, 3, 64, 64)
            torch.testing.assert_close(fast(images), model(images), **TOLERANCE)
