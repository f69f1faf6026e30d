"""Weights from a file, from an installed package and from a hub that cannot be reached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

import labelwise as lw
from labelwise.backbones import Backbone, BackboneConfig, read_state_dict
from labelwise.backbones.weights import PACKAGES
from labelwise.core.errors import LabelwiseError
from tests import fork_server
from tests.oracles import released, released_forward

RESNET = BackboneConfig(name="resnet10t", size=64)


def features_of(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model.eval().forward_features(x)


@pytest.mark.parametrize("kind", ["safetensors", "pth", "wrapped"])
def test_a_local_file_with_a_classifier_of_its_own(kind: str, tmp_path: Path) -> None:
    source = timm.create_model("resnet10t", num_classes=7)
    path = tmp_path / f"weights.{'safetensors' if kind == 'safetensors' else 'pth'}"
    if kind == "safetensors":
        save_file(source.state_dict(), path)
    else:
        state = source.state_dict()
        torch.save({"state_dict": state, "epoch": 3} if kind == "wrapped" else state, path)
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(Backbone(RESNET, str(path)).eval()(x), features_of(source, x))


@pytest.mark.parametrize(
    ("wrapper", "prefix", "labels"), [(None, "", 80), ("model", "", 9605), ("state_dict", "module.", 80)]
)
@torch.no_grad()
def test_the_authors_tresnet_files_start_a_training(
    wrapper: str | None, prefix: str, labels: int, tmp_path: Path
) -> None:
    """Their layout, which has InPlace-ABN for norms, and a classifier or an ML-Decoder to drop."""
    head = {"head.fc.weight": (labels, 2048), "head.fc.bias": (labels,)}
    if wrapper is None:
        head = released.ml_decoder(2048, labels, 20, dim=16)
    state = released.random_tensors(released.tresnet((3, 4, 6, 3)) | head)
    content: dict[str, object] = {f"{prefix}{key}": value for key, value in state.items()}
    torch.save(content if wrapper is None else {wrapper: content, "num_classes": labels}, tmp_path / "tresnet.pth")
    backbone = Backbone(BackboneConfig(name="tresnet_s", size=64), str(tmp_path / "tresnet.pth")).eval()
    images = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(backbone(images), released_forward.tresnet_map(state, images), atol=1e-4, rtol=1e-4)


def test_a_trained_model_gives_its_backbone(tmp_path: Path) -> None:
    model = lw.create_model("resnet10t", "gap", 3, weights="none", size=64)
    model.save(tmp_path)
    backbone = Backbone(RESNET, str(tmp_path / "model.safetensors")).eval()
    images = torch.rand(1, 3, 64, 64)
    assert torch.equal(backbone(images), model.eval().backbone(images))


def test_a_vit_file_is_fitted_to_another_image_size(tmp_path: Path) -> None:
    save_file(timm.create_model("vit_tiny_patch16_224").state_dict(), tmp_path / "vit.safetensors")
    backbone = Backbone(BackboneConfig(name="vit_tiny_patch16_224", size=96), str(tmp_path / "vit.safetensors"))
    assert backbone(torch.randn(1, 3, 96, 96)).shape == (1, 192, 6, 6)


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "tf_efficientnet_lite2"])
def test_weights_packages_are_pretrained(name: str) -> None:
    """Statistics of a trained network in every norm: a file that was not loaded, or only in part, has none."""
    package, _ = PACKAGES[name]
    pytest.importorskip(package)
    backbone = Backbone(BackboneConfig(name=name, size=64), "package").eval()
    automatic = Backbone(BackboneConfig(name=name, size=64), "auto").eval()
    x = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(backbone(x), automatic(x))
    norms = [m for n, m in backbone.named_modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert all(norm.running_var.min() >= 0 and not norm.running_mean.eq(0).all() for norm in norms)


@pytest.mark.parametrize(
    ("config", "weights", "message"),
    [
        (RESNET, "missing.pth", r"no weights file 'missing.pth'; give a path, or one of: auto, hub, package, none"),
        (RESNET, "package", "no package contains weights for 'resnet10t'; these have one: tf_efficientnet_lite0"),
        (BackboneConfig(name="nf_resnet26"), "hub", "no pretrained weights for 'nf_resnet26'"),
    ],
)
def test_mistakes_are_named(config: BackboneConfig, weights: str, message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        Backbone(config, weights)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    save_file({"conv1.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(LabelwiseError, match="do not fit backbone 'resnet10t'"):
        Backbone(RESNET, str(tmp_path / "other.safetensors"))


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


@pytest.mark.parametrize("content", ["hostile", "garbage", "empty"])
def test_files_that_are_not_plain_tensors_are_refused(content: str, tmp_path: Path, monkeypatch: object) -> None:
    path = tmp_path / "bad.pth"
    if content == "hostile":
        torch.save({"weight": Hostile()}, path)
    else:
        path.write_bytes(b"not a checkpoint" if content == "garbage" else b"")
    with pytest.raises(LabelwiseError, match="not a file of plain tensors"):
        read_state_dict(path)
    assert not Path("executed").exists()


def test_no_hub_says_what_else_there_is() -> None:
    """A process of the fork server: the hub is switched off, its cache is empty, as on a machine without internet."""
    script = (
        "import labelwise as lw\ntry: lw.create_model('resnet10t', 'gap', 3)\nexcept lw.LabelwiseError as e: print(e)\n"
    )
    done = fork_server.run("-c", script)
    assert "cannot download the weights of 'resnet10t' (the hub cannot be reached" in done.stdout, done.stderr
    assert "Retrying" not in done.stderr
    assert "weights='none'" in done.stdout
