"""Going on from a trained model: the new run begins where the old one ended, or says why it cannot."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.data.manifests import write_manifest
from labelwise.data.sample import make_sample
from labelwise.data.sources import open_data
from labelwise.training import Recipe, load_recipe
from labelwise.training.display import Display
from labelwise.training.loop import Trainer
from labelwise.training.recipe import OWN_PHOTOS, save_recipe
from labelwise.training.tables import open_tables
from labelwise.training.train import train

SMALL: dict[str, Any] = {
    "model.backbone": "test_resnet",
    "model.weights": "none",
    "model.size": 32,
    "model.head": "hsq",
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
    return train(load_recipe(None, wanted), Path(start).parent / "second", overwrite=True).model()


def test_a_run_goes_on_with_the_weights_head_and_backbone_of_another(first: tuple[Path, Path]) -> None:
    data, run = first
    before, after = lw.load_model(run), fine_tuning(data, run)
    assert after.config.head == before.config.head
    assert after.config.backbone.name == "test_resnet"
    learned = dict(before.named_parameters())
    assert all(torch.allclose(p.cpu(), learned[name], atol=1e-8) for name, p in after.named_parameters())


@pytest.mark.parametrize("freeze", ["none", "stem", "stem+norms", "early"])
def test_the_backbone_is_fine_tuned_all_of_it_or_its_end(freeze: str, first: tuple[Path, Path]) -> None:
    data, run = first
    before = dict(lw.load_model(run).backbone.model.named_parameters())
    after = fine_tuning(data, run, **{"model.freeze": freeze, "optimizer.lr": 1e-3, "batch_size": 8})
    learned = dict(after.backbone.model.named_parameters())
    assert torch.equal(learned["conv1.0.weight"], before["conv1.0.weight"]) == (freeze != "none")
    assert torch.equal(learned["layer4.0.bn2.bias"], before["layer4.0.bn2.bias"]) == (freeze == "stem+norms")
    assert not torch.equal(learned["layer4.0.conv1.weight"], before["layer4.0.conv1.weight"])


def test_a_model_folder_fits_the_settings_or_what_differs_is_named(first: tuple[Path, Path]) -> None:
    data, run = first
    fitting = fine_tuning(data, run / "model", **SMALL)
    assert fitting.config.head == lw.load_model(run).config.head
    other = {**SMALL, "model.options": {**SMALL["model.options"], "attention_heads": 4}}
    with pytest.raises(LabelwiseError, match="attention_heads 2, not 4"):
        fine_tuning(data, run / "model", **other)
    with pytest.raises(LabelwiseError, match="backbone test_resnet, not resnet14t"):
        fine_tuning(data, run / "model", **{**SMALL, "model.backbone": "resnet14t"})


def test_what_only_training_has_may_differ(first: tuple[Path, Path]) -> None:
    """Augmentation of queries can be switched on and off, and with it the layer that tells random queries."""
    data, run = first
    vectors = data.parent / "words.safetensors"
    save_file({name: torch.randn(4) for name in lw.load_model(run).labels}, vectors)
    options = {"queries": "words", "classifier": "shared", "dim": 16, "attention_heads": 2, "groups": None}
    words = {**SMALL, "model.head": "ml-decoder", "model.words": str(vectors)}
    noisy = {**options, "random_queries": 2, "random_target": "noise", "query_cutout": 0.1}
    train(load_recipe(None, {**words, "model.options": noisy, "data.source": str(data)}), run.parent / "noisy")
    after = fine_tuning(data, run.parent / "noisy" / "model", **{**words, "model.options": options})
    assert "head.noise.weight" not in after.state_dict()


def test_other_labels_are_refused(first: tuple[Path, Path]) -> None:
    data, run = first
    reordered = list(reversed(lw.load_model(run).labels))
    with pytest.raises(LabelwiseError, match="other labels"):
        fine_tuning(data, run, **{"data.labels": reordered})


def test_a_run_is_not_replaced_by_one_that_starts_from_it(first: tuple[Path, Path]) -> None:
    run = first[1]
    for start in (run, run / "model"):
        with pytest.raises(LabelwiseError, match="would be replaced"):
            train(load_recipe(None, {"model.start": str(start)}), run, overwrite=True)
    assert lw.load_model(run)


def test_nothing_is_removed_for_a_start_that_is_none(first: tuple[Path, Path]) -> None:
    data, run = first
    fine_tuning(data, run)
    with pytest.raises(LabelwiseError, match="nowhere"):
        fine_tuning(data, run.parent / "nowhere")
    assert lw.load_model(run.parent / "second")


def test_the_data_stays_divided_as_it_was(tmp_path: Path) -> None:
    """With another seed and more photos: nothing that was learned from may become a test photo."""
    make_sample(tmp_path / "sample", images=50, size=48)
    table = open_data(tmp_path / "sample" / "labels.csv")
    for name, rows in (("few", range(40)), ("more", range(50))):
        write_manifest(table.select(np.array(rows)).with_splits([""] * len(rows)), tmp_path / f"{name}.csv")
    train(load_recipe(None, {**SMALL, "data.source": str(tmp_path / "few.csv")}), tmp_path / "run")
    fine_tuning(tmp_path / "more.csv", tmp_path / "run", seed=7)
    before, after = (
        {os.path.realpath(image): split for image, split in zip(one.images, one.splits, strict=True)}
        for one in (open_data(tmp_path / run / "split.csv") for run in ("run", "second"))
    )
    assert len(after) == 50
    assert {image: after[image] for image in before} == before
    assert {split for image, split in after.items() if image not in before} == {"train"}
    # The new run knows its splits by itself: for its reports, and to be resumed.
    shutil.rmtree(tmp_path / "run")
    again, held_out = open_tables(
        load_recipe(tmp_path / "second" / "recipe.yaml", {}), Display(None), run=tmp_path / "second"
    )
    assert held_out is not None
    assert {after[os.path.realpath(image)] for image in again.images} == {"train"}
    assert {after[os.path.realpath(image)] for image in held_out.images} == {"val"}


def test_a_run_brings_its_loss_and_task_along(tmp_path: Path) -> None:
    single = Recipe(loss={"name": "softmax-cross-entropy"}, model={"task": "single-label", "head": "gap"}, seed=3)
    save_recipe(single, tmp_path / "recipe.yaml")
    wanted = load_recipe(None, {"model.start": str(tmp_path)})
    assert (wanted.loss.name, wanted.model.task, wanted.model.head, wanted.seed) == (
        "softmax-cross-entropy",
        "single-label",
        "gap",
        3,
    )


def test_a_recipe_that_lies_around_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_recipe(Recipe(model={"head": "gap"}), tmp_path / "recipe.yaml")
    monkeypatch.chdir(tmp_path)
    assert load_recipe(None, {}) == OWN_PHOTOS


def test_an_interrupted_run_does_not_need_its_start_any_more(
    first: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run = first
    start = shutil.copytree(run, tmp_path / "start")
    changes = {"model.start": str(start), "model.freeze": "early", "epochs": 2, "batch_size": 8, "workers": 0}
    wanted = load_recipe(None, {**changes, "data.source": str(data)})
    whole = train(wanted, tmp_path / "whole").model()
    epoch = Trainer._train_epoch

    def power_cut(self: Trainer, number: int, *rest: Any) -> None:
        if number == 1:
            raise KeyboardInterrupt
        epoch(self, number, *rest)

    monkeypatch.setattr(Trainer, "_train_epoch", power_cut)
    with pytest.raises(KeyboardInterrupt):
        train(wanted, tmp_path / "cut")
    monkeypatch.undo()
    shutil.rmtree(start)
    resumed = train(wanted, tmp_path / "cut", resume=True).model()
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
