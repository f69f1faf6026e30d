"""Attention per layer and head against the head's own record, and Grad-CAM against CAM and another implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from labelwise.analysis.maps import grad_cam, label_maps, map_caption, maps_of
from labelwise.core.errors import LabelwiseError
from labelwise.model.model import LabelModel, create_model
from labelwise.runtime.tagger import Tagger

LABELS = ("boat", "car", "cat", "dog", "sun")


def small_model(head: str, seed: int = 0, **options: object) -> LabelModel:
    torch.manual_seed(seed)
    sizes = {} if head in ("gap", "csra") else {"dim": 32}
    return create_model("test_resnet", head, LABELS, weights="none", size=96, **sizes, **options).eval()


@pytest.fixture(scope="module")
def hsq() -> LabelModel:
    return small_model("hsq")


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(1))


def test_each_layer_and_head_is_the_recorded_one(hsq: LabelModel, images: torch.Tensor) -> None:
    labels = torch.tensor([[3, 0], [1, 4]])
    details = hsq.details(images)
    assert len(details.attention_layers) == 2
    one = label_maps(hsq, images, labels, layer=1, head=5)
    assert torch.allclose(one[1, 0], details.attention_layers[0][1, 4, 1], atol=1e-6)
    last = label_maps(hsq, images, labels)
    assert torch.allclose(last[0, 1], details.attention_layers[1][0].mean(dim=0)[0], atol=1e-6)
    every = torch.stack([label_maps(hsq, images, labels, head=head) for head in range(1, 9)])
    assert torch.allclose(every.mean(dim=0), last, atol=1e-6)
    assert not torch.allclose(every[0], every[1])
    assert not torch.allclose(label_maps(hsq, images, labels, layer=1), last)


def test_a_group_head_shows_the_group_of_the_label(images: torch.Tensor) -> None:
    model = small_model("ml-decoder", groups=2)
    query = model.head.label_query  # type: ignore[union-attr]
    maps = label_maps(model, images, torch.arange(5).expand(2, -1))
    for a in range(5):
        for b in range(a):
            assert torch.equal(maps[:, a], maps[:, b]) == bool(query[a] == query[b])


@pytest.mark.parametrize("head", ["csra", "transformer-decoder", "q2l", "ml-decoder", "hsq", "hsq-linear"])
def test_maps_of_a_picture_are_the_taggers(head: str) -> None:
    model = small_model(head)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (80, 60, 3), np.uint8))
    maps = maps_of(model, picture, ["cat", "sun"])
    prediction = Tagger(model).predict(picture)[0]
    for label in maps:
        np.testing.assert_allclose(maps[label], prediction.attention(label), atol=1e-5)
        assert maps[label].sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("head", ["gap", "csra", "q2l", "hsq"])
def test_grad_cam_equals_the_grad_cam_package(head: str, images: torch.Tensor) -> None:
    package = pytest.importorskip("pytorch_grad_cam")
    from pytorch_grad_cam.utils.image import scale_cam_image
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    model = small_model(head, seed=1)
    ours = grad_cam(model, images, torch.tensor([[0, 1, 2], [4, 3, 2]])).numpy()
    assert (ours.max(axis=(2, 3)) > 0).any()  # of an untrained head, some say that nothing speaks for the label
    with package.GradCAM(model, [model.backbone]) as theirs:
        for place, labels in enumerate(((0, 4), (1, 3), (2, 2))):
            expected = theirs(images, [ClassifierOutputTarget(label) for label in labels])
            # The package stretches to 0..1, enlarges, and stretches what it has of all layers once more.
            stretched = scale_cam_image(scale_cam_image(ours[:, place], (96, 96)))
            np.testing.assert_allclose(stretched, expected, atol=1e-4)


def test_grad_cam_of_average_pooling_is_cam(images: torch.Tensor) -> None:
    """Zhou et al. 2016: the classifier's weights applied at each place; its mean over the places is the logit."""
    model = small_model("gap")
    with torch.no_grad():
        features = model.backbone(images)
        cam = torch.einsum("nc,bchw->bnhw", model.head.classifier.weight, features)  # type: ignore[union-attr]
    everything = grad_cam(model, images, torch.arange(5).expand(2, -1))
    places = features.shape[2] * features.shape[3]
    torch.testing.assert_close(everything * places, cam.relu(), atol=1e-4, rtol=1e-4)


def test_grad_cam_leaves_no_trace(hsq: LabelModel, images: torch.Tensor) -> None:
    hsq.train()
    before = hsq.state_dict()["backbone.model.bn1.running_mean"].clone() if hasattr(hsq.backbone.model, "bn1") else None
    first = grad_cam(hsq, images, torch.tensor([[0], [0]]))
    assert hsq.training
    assert torch.equal(first, grad_cam(hsq, images, torch.tensor([[0], [0]])))  # no dropout
    assert all(parameter.grad is None for parameter in hsq.parameters())
    if before is not None:
        assert torch.equal(before, hsq.state_dict()["backbone.model.bn1.running_mean"])
    hsq.eval()


def test_mistakes_are_named(hsq: LabelModel, images: torch.Tensor) -> None:
    labels = torch.zeros(2, 1, dtype=torch.long)
    with pytest.raises(LabelwiseError, match="layers 1 to 2"):
        label_maps(hsq, images, labels, layer=3)
    with pytest.raises(LabelwiseError, match="heads 1 to 8"):
        label_maps(hsq, images, labels, head=0)
    with pytest.raises(LabelwiseError, match="neither layers nor attention heads"):
        label_maps(hsq, images, labels, method="grad-cam", layer=1)
    with pytest.raises(LabelwiseError, match="method='grad-cam'"):
        label_maps(small_model("gap"), images, labels, method="attention")
    with pytest.raises(LabelwiseError, match="did you mean 'boat'"):
        maps_of(hsq, Image.new("RGB", (20, 20)), ["boot"])
    assert map_caption(small_model("gap"), None, None, None) == "Grad-CAM"
    assert map_caption(hsq, None, 1, 3) == "attention of layer 1, head 3"
