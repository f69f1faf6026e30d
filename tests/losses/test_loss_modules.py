"""Losses by name: the options reach the function, and mistakes are named."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Literal

import pytest
import torch

from labelwise import losses
from labelwise.core.errors import LabelwiseError
from labelwise.core.plugins import Registry, import_plugins
from labelwise.losses import modules

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 1.0, -2.0]])
TARGETS = torch.tensor([[1, 0, 0], [0, 1, -1]])


@pytest.mark.parametrize("name", losses.list_losses())
def test_defaults_are_the_functions_defaults(name: str) -> None:
    module = losses.create(name)
    function = getattr(losses, name.replace("-", "_"))
    module.set_epoch(1)
    assert torch.equal(module(LOGITS, TARGETS), function(LOGITS, TARGETS))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bce", {"reduction": "batch", "unknown": "negative", "unknown_weight": 0.1}),
        ("softmax-cross-entropy", {"label_smoothing": 0.1}),
        ("focal", {"gamma": 1.0, "alpha": 0.25}),
        ("asymmetric", {"gamma_neg": 7, "gamma_pos": 1, "clip": 0.0, "detach_weight": True}),
        ("two-way", {"temperature_neg": 2.0}),
        ("hill", {"lam": 2.0, "margin": 0.5}),
    ],
)
def test_options_reach_the_function(name: str, options: dict[str, object]) -> None:
    function = getattr(losses, name.replace("-", "_"))
    loss = losses.create(name, **options)(LOGITS, TARGETS)
    assert torch.equal(loss, function(LOGITS, TARGETS, **options))
    assert not torch.equal(loss, function(LOGITS, TARGETS))


def test_splc_corrects_from_its_epoch_on() -> None:
    module = losses.SPLC(change_epoch=2)
    values = []
    for epoch in range(4):
        module.set_epoch(epoch)
        values.append(module(LOGITS, TARGETS).item())
    assert values[0] == values[1] != values[2] == values[3]
    assert losses.SPLC()(LOGITS, TARGETS) == losses.splc(LOGITS, TARGETS, epoch=0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("asymetric", {}, "unknown loss 'asymetric'; did you mean 'asymmetric'"),
        (
            "asymmetric",
            {"gama_neg": 1},
            r"^loss 'asymmetric': unknown option 'gama_neg'; did you mean 'gamma_neg'\? \(",
        ),
        ("splc", {"epoch": 1}, "^loss 'splc': unknown option 'epoch'"),
        ("bce", {"reduction": "avg"}, "loss 'bce': reduction='avg': "),
        ("focal", {"gamma": -1}, "loss 'focal': gamma=-1: "),
        ("asymmetric", {"clip": 1.0}, "loss 'asymmetric': clip=1.0: "),
        ("two-way", {"temperature_pos": 0}, "loss 'two-way': temperature_pos=0: "),
        ("bce", {"unknown_weight": float("nan")}, "loss 'bce': unknown_weight=nan: "),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        losses.create(name, **options)


def test_modules_save_no_state() -> None:
    assert losses.create("asymmetric").state_dict() == {}


def squared(logits: torch.Tensor, targets: torch.Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> torch.Tensor:
    error = (logits.sigmoid() - targets.clamp(min=0)).square()
    return error.mean() if reduction == "mean" else error.sum()


def test_a_loss_of_ones_own_is_one_function_and_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "labelwise.losses.modules._LOSSES", Registry("loss", "labelwise.losses")
    )  # forget it after the test

    class Squared(losses.Loss, name="squared", function=squared):
        pass

    assert losses.list_losses() == ["squared"]
    assert losses.loss_options("squared") == ["reduction"]
    loss = losses.create("squared", reduction="sum")
    assert isinstance(loss, Squared)
    assert torch.equal(loss(LOGITS, TARGETS), squared(LOGITS, TARGETS, reduction="sum"))
    with pytest.raises(LabelwiseError, match=r"reduction='median'"):
        losses.create("squared", reduction="median")


def test_a_package_brings_its_loss_to_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real installed package, as pip leaves it: a module and the entry points in its dist-info."""
    (tmp_path / "plugin_loss.py").write_text(
        "from labelwise.losses import Loss, bce\n\n\nclass Plugin(Loss, name='plugin', function=bce):\n    pass\n"
    )
    info = tmp_path / "plugin_loss-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-loss\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[labelwise.losses]\nplugin = plugin_loss\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("labelwise.losses.modules._LOSSES", copy(modules._LOSSES))  # forget it after the test
    import_plugins.cache_clear()
    assert "plugin" in losses.list_losses()
    assert torch.equal(losses.create("plugin")(LOGITS, TARGETS), losses.bce(LOGITS, TARGETS))
    with pytest.raises(LabelwiseError, match="there is a loss 'bce' already"):
        type("Mine", (losses.Loss,), {}, name="bce", function=losses.bce)
    import_plugins.cache_clear()
