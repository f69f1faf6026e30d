"""Going on from a trained model: the new run begins where the old one ended, or says why it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import labelwise as lw
from labelwise.data.sample import make_sample
from labelwise.errors import LabelwiseError
from labelwise.training import load_recipe
from labelwise.training.run import train

SMALL: dict[str, Any] = {
    "model.backbone": "resnet10t",
    "model.weights": "none",
    "model.size": 32,
    "model.options": {"dim": 16, "attention_heads": 2, "shared_experts": 2},
    "epochs": 1,
    "batch_size": 8,
    "workers": 0,
}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The data, and a run on it whose head alone was trained."""
    folder = tmp_path_factory.mktemp("first")
    make_sample(folder / "sample", images=40, size=48)
    data = folder / "sample" / "labels.csv"
    train(load_recipe(None, {**SMALL, "data.source": str(data)}), folder / "run")
    return data, folder / "run"


def fine_tuning(data: Path, start: Path | str, **changes: Any) -> lw.LabelModel:
    """A run of one epoch that changes next to nothing: what it ends with is what it began with."""
    wanted = {
        "data.source": str(data),
        "model.start": str(start),
        "model.freeze": "none",
        "optimizer.lr": 1e-12,
        "epochs": 1,
        "workers": 0,
        **changes,
    }
    return train(load_recipe(None, wanted), Path(start).parent / "second", overwrite=True)


def test_a_run_goes_on_with_the_weights_head_and_backbone_of_another(first: tuple[Path, Path]) -> None:
    data, run = first
    before, after = lw.load_model(run), fine_tuning(data, run)
    assert after.config.head == before.config.head
    assert after.config.backbone.name == "resnet10t"
    learned = dict(before.named_parameters())
    assert all(torch.allclose(p.cpu(), learned[name], atol=1e-8) for name, p in after.named_parameters())


@pytest.mark.parametrize("freeze", ["none", "early"])
def test_the_backbone_is_fine_tuned_all_of_it_or_its_end(freeze: str, first: tuple[Path, Path]) -> None:
    data, run = first
    before = dict(lw.load_model(run).backbone.model.named_parameters())
    after = fine_tuning(data, run, **{"model.freeze": freeze, "optimizer.lr": 1e-3, "batch_size": 8})
    learned = dict(after.backbone.model.named_parameters())
    assert torch.equal(learned["conv1.0.weight"], before["conv1.0.weight"]) == (freeze == "early")
    assert not torch.equal(learned["layer4.0.bn2.bias"], before["layer4.0.bn2.bias"])


def test_a_model_folder_needs_a_recipe_that_describes_it(first: tuple[Path, Path]) -> None:
    data, run = first
    with pytest.raises(LabelwiseError, match="not the model that this recipe describes"):
        fine_tuning(data, run / "model", **{**SMALL, "model.backbone": "resnet14t"})


def test_other_labels_are_refused(first: tuple[Path, Path]) -> None:
    data, run = first
    reordered = list(reversed(lw.load_model(run).labels))
    with pytest.raises(LabelwiseError, match="other labels"):
        fine_tuning(data, run, **{"data.labels": reordered})


def test_a_folder_that_is_none_is_named(first: tuple[Path, Path]) -> None:
    with pytest.raises(LabelwiseError, match="nowhere"):
        fine_tuning(first[0], first[1].parent / "nowhere")
