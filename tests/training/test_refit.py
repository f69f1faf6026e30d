"""The last part of a training: what the validation images have told is kept, then they are learned from, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.data.manifests import write_manifest
from labelwise.data.sources import open_data
from labelwise.evaluation.thresholds import fit_config
from labelwise.training.loop import Trainer
from labelwise.training.train import train
from run_kit import recipe

FROZEN: dict[str, Any] = {"model.freeze": "backbone", "epochs": 4}


@pytest.fixture(scope="module", autouse=True)
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The last bits of features depend on the engine that computed them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELWISE_CACHE", str(tmp_path_factory.mktemp("refit-cache")))
        yield


@pytest.fixture(scope="module")
def refitted(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> lw.Run:
    return train(recipe(sample, **FROZEN, refit=0.5), tmp_path_factory.mktemp("refit") / "run")


def test_every_image_but_the_test_images_is_learned_from(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    step = Trainer._step
    monkeypatch.setattr(Trainer, "_step", lambda self, *given: counts.append(len(given[1])) or step(self, *given))
    train(recipe(sample, **FROZEN, refit=0.5, batch_size=2), tmp_path / "run")
    images = {name: len(open_data(sample).select(name)) for name in ("train", "val")}
    assert len(counts) == 4 * (images["train"] // 2) + 2 * ((images["train"] + images["val"]) // 2)


def test_thresholds_and_scores_are_from_before(refitted: lw.Run, sample: Path, tmp_path: Path) -> None:
    plain = train(recipe(sample, **FROZEN), tmp_path / "plain")
    assert refitted.config.thresholds == plain.config.thresholds
    assert refitted.results == plain.results
    assert refitted.history.to_pandas()["mAP"].tolist() == plain.history.to_pandas()["mAP"].tolist()
    before, after = plain.model().head.state_dict(), refitted.model().head.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_thresholds_are_fitted_on_logits_from_before(refitted: lw.Run, sample: Path) -> None:
    """After it, scores of validation images are too high for any threshold to mean something."""
    kept = refitted.held_out(open_data(sample).select("val"))
    assert kept is not None
    with pytest.warns(UserWarning, match="too few"):
        found = lw.evaluate(refitted, sample, split="test", fit_on="val", fit_thresholds="auto", fit_temperature=True)
    expected = fit_config(refitted.config, *kept, thresholds="auto", temperature=True).config
    assert found.fitted["on"] == "val"
    np.testing.assert_allclose([row["threshold"] for row in found.to_dict()["per_label"]], expected.thresholds)
    with pytest.warns(UserWarning, match="the model has learned from images of val"):
        lw.evaluate(refitted, sample, split="val", bootstrap=0)


def test_without_test_images_nothing_is_refitted(sample: Path, tmp_path: Path) -> None:
    """Then the validation images are the only ones that can tell how good the model is."""
    table = open_data(sample)
    write_manifest(table.select("train+val"), tmp_path / "photos.csv")
    run = train(recipe(tmp_path / "photos.csv", **FROZEN, refit=0.5), tmp_path / "run")
    assert not run.refitted
    assert run.learned_from(None, "train", table)
    assert not run.learned_from(None, "val", table)


def test_its_own_images_are_known_under_any_path(
    refitted: lw.Run, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sample.parent)
    val = open_data(sample.name).select("val")
    assert refitted.held_out(val) is not None
    assert refitted.learned_from(sample.name, "val", val)
    assert not refitted.learned_from(sample.name, "test", open_data(sample.name).select("test"))


def test_without_thresholds_it_still_says_that_it_was_refitted(sample: Path, tmp_path: Path) -> None:
    run = train(recipe(sample, **FROZEN, refit=0.5, thresholds="none"), tmp_path / "run")
    assert run.refitted
    assert run.learned_from(None, "val", open_data(sample).select("val"))


def test_a_loss_that_changes_over_the_epochs_is_not_begun_anew(sample: Path, tmp_path: Path) -> None:
    changes = {"loss.name": "em", "pair_mix": 0.0}
    assert not train(recipe(sample, **FROZEN, **changes, refit=0.5), tmp_path / "run").refitted


def test_an_export_in_a_run_folder_is_measured(refitted: lw.Run, sample: Path) -> None:
    assert refitted.folder is not None
    lw.export(refitted, out=refitted.folder / "onnx")
    lw.evaluate(refitted.folder / "onnx", sample, split="test", bootstrap=0)


@pytest.mark.parametrize("stop_at", [3, 24])
def test_a_stopped_run_goes_on_to_the_same_bits(
    stop_at: int, refitted: lw.Run, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = len(range(0, len(open_data(sample).select("train")) - 7, 8))
    assert 3 < 4 * steps < 24, "one stop in each part"
    done = 0
    step = Trainer._step

    def stopping(self: Trainer, *given: Any) -> float:
        nonlocal done
        done += 1
        if done == stop_at:
            raise KeyboardInterrupt
        return step(self, *given)

    wanted = recipe(sample, **FROZEN, refit=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stopping)
        with pytest.raises(KeyboardInterrupt):
            train(wanted, tmp_path / "run")
    again = train(wanted, tmp_path / "run", resume=True).model().state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in refitted.model().state_dict().items())
