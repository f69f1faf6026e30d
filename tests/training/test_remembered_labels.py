"""Losses that remember something of each image, in whole runs: stopped anywhere, they go on to the same bits."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import labelwise as lw
from labelwise import losses
from labelwise.core.errors import LabelwiseError
from labelwise.losses import modules
from labelwise.training import load_recipe
from labelwise.training.check import check
from labelwise.training.checkpoint import named, read_checkpoint
from labelwise.training.loop import Trainer
from labelwise.training.train import train
from run_kit import recipe


@pytest.fixture
def hidden(sample: Path, tmp_path: Path) -> Path:
    lw.data.write_manifest(lw.data.hide(str(sample), "one-positive"), tmp_path / "hidden.csv", columns=True)
    return tmp_path / "hidden.csv"


def remembered(run: Path) -> dict[str, torch.Tensor]:
    tensors, _ = read_checkpoint(run / "checkpoints" / "last.safetensors")
    return named("loss", tensors)


@pytest.mark.parametrize(
    ("loss", "options", "freeze"),
    [("em", {"warmup_epochs": 1}, "none"), ("role", {"expected_positives": 2}, "backbone")],
)
def test_stopped_within_an_epoch_a_run_goes_on_to_the_same_bits(
    loss: str, options: dict[str, Any], freeze: str, hidden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = recipe(
        hidden,
        **{"model.freeze": freeze, "loss.name": loss, "loss.options": options, "checkpoint_minutes": 1e-9, "epochs": 3},
    )
    train(wanted, tmp_path / "whole")
    memory = remembered(tmp_path / "whole")
    assert memory
    if loss == "em":
        assert int(memory["rounds"]) == 2
        assert (memory["pseudo_labels"] >= 0).any()
    real = Trainer._step

    def stops(self: Trainer, *batch: Any) -> float:
        if self.progress.step == len(self.batches) + 2:  # in the second epoch, whose pseudo-labels are chosen
            raise RuntimeError("power cut")
        return real(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stops)
        with pytest.raises(RuntimeError, match="power cut"):
            train(wanted, tmp_path / "stopped")
    train(wanted, tmp_path / "stopped", resume=True)
    for name, tensor in remembered(tmp_path / "stopped").items():
        assert torch.equal(tensor.nan_to_num(-9), memory[name].nan_to_num(-9)), name
    expected, got = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "stopped"))
    assert [name for name in expected if not torch.equal(expected[name], got[name])] == []


def test_images_are_not_mixed_unless_somebody_asks_for_it_who_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_recipe(None, {"loss.name": "bce"}).pair_mix > 0
    assert load_recipe(None, {"loss.name": "role"}).pair_mix == 0
    with pytest.raises(
        LabelwiseError, match=r"'role' remembers something of each image, so neither .*mixup=0.*pair_mix=0"
    ):
        check(load_recipe(None, {"loss.name": "role", "mixup": 0.2, "pair_mix": 0.5}))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LabelwiseError, match=r"'em' remembers .*, so it trains in one process, not in 2"):
        check(load_recipe(None, {"loss.name": "em", "batch_size": 32}))


def test_a_loss_of_another_package_is_checked_by_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelwise.losses.modules._LOSSES", copy(modules._LOSSES))  # forget them after the test

    class Recalling(losses.Loss, name="recalling", function=losses.bce, memory=lambda: None):
        """Remembers images, and ignores unknown labels."""

    class Guessing(losses.Loss, name="guessing", function=losses.bce, uses_unknown=True):
        """The other way round."""

    assert [load_recipe(None, {"loss.name": name}).pair_mix for name in ("recalling", "guessing")] == [0, 0.5]
    with pytest.raises(LabelwiseError, match=r"'recalling' remembers something of each image, so neither .*cutmix=0"):
        check(load_recipe(None, {"loss.name": "recalling", "cutmix": 0.2}))
    with pytest.raises(LabelwiseError, match=r"'recalling' remembers .*, so it trains in one process, not in 2"):
        check(load_recipe(None, {"loss.name": "recalling"}), processes=2)
    with pytest.raises(LabelwiseError, match="hides the labels that it is told"):
        check(load_recipe(None, {"model.head": "c-tran", "loss.name": "guessing"}))
    check(load_recipe(None, {"model.head": "c-tran", "loss.name": "recalling"}))


def test_gpr_gets_the_epoch_and_their_number(hidden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(lw.losses.GPR, "set_epoch", lambda self, epoch: seen.append((epoch, self.epochs)), raising=True)
    train(recipe(hidden, **{"model.freeze": "backbone", "loss.name": "gpr"}), tmp_path / "run")
    assert seen == [(0, 2), (1, 2)]


@pytest.mark.parametrize("loss", [{"loss.name": "em"}, {"loss.options.unknown": "negative"}])
def test_what_a_head_is_told_is_not_unknown_to_the_loss(loss: dict[str, Any]) -> None:
    """It is hidden from the loss, which must not take it for a label that nobody looked for."""
    with pytest.raises(LabelwiseError, match="hides the labels that it is told"):
        check(load_recipe(None, {"model.head": "c-tran", **loss}))
