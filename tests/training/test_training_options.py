"""Options that save memory or that researchers expect: each against what it must equal."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from timm.optim import param_groups_layer_decay
from torch import nn

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.training.distributed import precision_here
from labelwise.training.model_options import fixed_statistics, synchronise_norms
from labelwise.training.optimizer import create_optimizer, set_rate
from labelwise.training.recipe import OptimizerRecipe, load_recipe
from labelwise.training.train import train
from run_kit import recipe


def trained(tmp_path: Path, name: str, data: Path, **changes: Any) -> dict[str, torch.Tensor]:
    run = train(recipe(data, **{"data.validation": None, "data.train": "train+val", **changes}), tmp_path / name)
    return load_file(run.folder / "model" / "model.safetensors") | {"lr": torch.tensor([h["lr"] for h in run.history])}


NO_CHANCE = {"model.head": "gap", "model.options": {}, "pair_mix": 0.0, "augmentation.flip": 0.0}


@pytest.mark.parametrize("backbone", ["test_resnet", "test_vit", "resnet10t"])
def test_gradient_checkpointing_gives_the_same_numbers(backbone: str, sample: Path, tmp_path: Path) -> None:
    """Weights and, although the blocks see each image twice, the statistics of batch norms."""
    same = {"model.backbone": backbone, "epochs": 1, "model.drop_path": 0.1, "optimizer.clip_norm": None}
    plain = trained(tmp_path, "plain", sample, **same)
    saving = trained(tmp_path, "saving", sample, **same, grad_checkpointing=True)
    for name, tensor in plain.items():
        torch.testing.assert_close(saving[name], tensor, atol=1e-6, rtol=0, msg=name)


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.SyncBatchNorm])
def test_norms_that_run_again_keep_their_statistics_and_a_counter(kind: type[nn.BatchNorm2d]) -> None:
    """A synchronised norm runs only on GPUs; it refuses to run without the counter."""
    norm = kind(2)
    norm.num_batches_tracked.fill_(5)
    before = deepcopy(norm.state_dict())
    with fixed_statistics(norm):
        assert norm.num_batches_tracked == 5
        if kind is nn.BatchNorm2d:
            norm(torch.randn(4, 2, 3, 3))
        norm.num_batches_tracked.add_(1)
    assert norm.momentum == 0.1
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm.state_dict().items())


def test_a_backbone_that_cannot_be_checkpointed_says_so(sample: Path, tmp_path: Path) -> None:
    with pytest.raises(LabelwiseError, match="no gradient checkpointing for backbone 'inception_v3'"):
        trained(
            tmp_path, "run", sample, **{"model.backbone": "inception_v3", "model.size": 96}, grad_checkpointing=True
        )


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_accumulated_batches_are_one_large_batch(reduction: str, schedule: str, sample: Path, tmp_path: Path) -> None:
    """48 images: three batches of 16, or six of 8 in three windows. Weights, their average and the rates are equal."""
    same = NO_CHANCE | {"model.freeze": "backbone", "loss.options": {"reduction": reduction}, "loss.name": "bce"}
    same |= {"schedule.name": schedule, "schedule.warmup": 0.4, "ema": 0.5, "epochs": 2, "optimizer.name": "sgd"}
    large = trained(tmp_path, "large", sample, **same, batch_size=16)
    small = trained(tmp_path, "small", sample, **same, batch_size=8, accumulate=2)
    for name, tensor in large.items():
        torch.testing.assert_close(small[name], tensor, atol=1e-6, rtol=1e-5, msg=name)


def test_the_last_incomplete_window_weighs_as_its_images(sample: Path, tmp_path: Path) -> None:
    """48 images: six batches of 8 in a window that could hold seven are one batch of 48."""
    same = NO_CHANCE | {"model.freeze": "backbone", "loss.name": "bce", "epochs": 2, "optimizer.name": "sgd"}
    large = trained(tmp_path, "large", sample, **same, batch_size=48)
    small = trained(tmp_path, "small", sample, **same, batch_size=8, accumulate=7)
    for name, tensor in large.items():
        torch.testing.assert_close(small[name], tensor, atol=1e-6, rtol=1e-5, msg=name)


def test_a_single_image_and_a_batch_norm_end_in_one_line(sample: Path, tmp_path: Path) -> None:
    with pytest.raises(LabelwiseError, match="a batch norm cannot learn from one image"):
        trained(tmp_path, "run", sample, batch_size=1)


def test_layer_decay_is_timms() -> None:
    """Without its decay of biases and with our own head, which keeps the full rate."""
    model = lw.create_model("test_vit", "gap", 3, weights="none")
    optimizer = create_optimizer(model, OptimizerRecipe(lr=1.0, backbone_lr=0.5, layer_decay=0.7, weight_decay=0.0))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    rates = {names[id(p)]: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates["head.classifier.weight"] == 1.0
    groups = param_groups_layer_decay(model.backbone.model, layer_decay=0.7)
    theirs = {names[id(p)]: 0.5 * group["lr_scale"] for group in groups for p in group["params"]}
    assert {name: rate for name, rate in rates.items() if name.startswith("backbone.")} == pytest.approx(theirs)
    assert len(set(rates.values())) > 3


def test_sgd_is_torchs_and_its_momentum_cycles() -> None:
    layer = nn.Linear(3, 2)
    optimizer = create_optimizer(layer, OptimizerRecipe(name="sgd", lr=0.1, momentum=0.8, weight_decay=0.01))
    assert isinstance(optimizer, torch.optim.SGD)
    assert {(group["momentum"], group["weight_decay"]) for group in optimizer.param_groups} == {(0.8, 0.01), (0.8, 0.0)}
    set_rate(optimizer, 0.5, momentum=0.85)
    assert {(group["lr"], group["momentum"]) for group in optimizer.param_groups} == {(0.05, 0.85)}


def test_batch_norms_are_synchronised_among_gpus_only() -> None:
    def kinds(processes: int, device: str) -> set[type]:
        module = lw.create_model("resnet10t", "gap", 3, weights="none").backbone
        fabric: Any = SimpleNamespace(world_size=processes, device=torch.device(device))
        synchronise_norms(module, fabric)
        return {type(layer) for layer in module.modules() if "BatchNorm" in type(layer).__name__}

    assert kinds(1, "cpu") == kinds(1, "cuda") == {nn.BatchNorm2d}
    assert kinds(2, "cuda") == {nn.SyncBatchNorm}
    with pytest.raises(LabelwiseError, match="only among GPUs"):
        kinds(2, "cpu")


def test_few_images_are_trained_for_enough_steps(sample: Path, tmp_path: Path) -> None:
    run = train(recipe(sample, epochs=1, min_steps=7, batch_size=32), tmp_path / "run")
    steps = len(lw.data.open_data(sample).select("train")) // 32
    assert len(run.history) == -(-7 // steps)
    assert load_recipe(None, {"epochs": 2}).min_steps == 0  # who names a number of epochs means it


def test_precision_follows_the_processor(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = recipe(sample, precision="auto")
    for flags, precision in (({"avx2": True}, "32-true"), ({"avx2": True, "avx512_bf16": True}, "bf16-mixed")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda flags=flags: flags)
        assert precision_here(wanted) == precision
    assert precision_here(recipe(sample, precision="16-mixed")) == "16-mixed"
