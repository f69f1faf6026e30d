"""What a training will need: counted bytes against those of real steps, and what the command prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

import labelwise as lw
from benchmarks.recipe_costs import DATASETS, cost_line, costs, paper_recipes
from labelwise.core.errors import LabelwiseError
from labelwise.model.model import LabelModel
from labelwise.training import load_recipe
from labelwise.training.estimate import GPUS, hollow_model
from labelwise.training.step_cost import CudaAutocast, count_step

RECIPES = Path(__file__).parents[2] / "recipes"
HSQ_CVN = RECIPES / "hsq" / "coco-convnext-576.yaml"


def hollow(backbone: str, **settings: Any) -> LabelModel:
    options = {"dim": 32, "attention_heads": 2, "shared_experts": 2, "dropout": 0.0}
    changes = {"model.backbone": backbone, "model.size": 64, "model.freeze": "none", "model.options": options}
    return hollow_model(load_recipe(None, changes | settings), tuple("abcde")).train()


def images(device: str = "meta") -> dict[str, Tensor]:
    return {"images": torch.zeros(16, 3, 64, 64, device=device)}


@contextmanager
def saved_bytes(module: nn.Module) -> Iterator[Callable[[], int]]:
    """How much autograd keeps for the backward pass, beside the weights: what makes training need memory."""
    own = {id(p.untyped_storage()): p.untyped_storage() for p in module.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no id is used twice

    def pack(tensor: Tensor) -> Tensor:
        kept[id(tensor.untyped_storage())] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        yield lambda: sum(storage.nbytes() for key, storage in kept.items() if key not in own)


@pytest.mark.parametrize("backbone", ["test_resnet", "test_convnext", "test_vit"])
def test_activations_are_those_of_a_real_step_on_the_cpu(backbone: str) -> None:
    module = hollow(backbone)
    counted = count_step(module, images, None).activations
    real = lw.create_model(
        backbone, "hsq", 5, weights="none", size=64, dim=32, attention_heads=2, shared_experts=2, dropout=0.0
    ).train()
    with saved_bytes(real) as saved:
        real(**images("cpu"))
        assert 0.95 * saved() < counted < 1.3 * saved()  # it also counts what a layer holds for a moment


@pytest.mark.parametrize("backbone", ["test_resnet", "test_convnext", "test_efficientnet"])
def test_half_precision_is_that_of_torchs_own_autocast(backbone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors of device "cuda" run the forward pass with autocast's real list of operations."""
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    module = hollow(backbone, **{"model.head": "gap", "model.options": {}})
    with saved_bytes(module) as ours, CudaAutocast(torch.float16).in_modules():
        module(**images())
    counted = ours()
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = module.to_empty(device="cuda")
        with saved_bytes(fake) as theirs, torch.autocast("cuda", torch.float16):
            fake(**images("cuda"))
        assert counted == pytest.approx(theirs(), rel=0.02)


def test_flops_are_three_times_those_of_the_forward_pass_and_four_if_blocks_run_twice() -> None:
    """Grouped convolutions too, for which torch's own count of the backward pass is far too large."""
    head = {"model.head": "gap", "model.options": {}}
    plain = hollow("test_convnext", **head)
    forward = 16 * 2 * lw.complexity(plain).total("macs")
    assert count_step(plain, images, None).flops == pytest.approx(3 * forward, rel=0.05)  # no gradient of the image
    again = hollow("test_convnext", **head, grad_checkpointing=True)
    assert count_step(again, images, None).flops == pytest.approx(4 * forward, rel=0.1)


def test_checkpointing_and_small_batches_make_hsq_cvn_fit() -> None:
    """On V100s as in the paper's appendix. At least 32.2 GiB were counted by hand for the recipe as it is."""
    common: dict[str, Any] = {"recipe": HSQ_CVN, "images": 82_081, "labels": 80, "gpu": "v100", "gpus": 4}
    plain = lw.estimate(**common)
    assert 32.2 < plain.total_memory / 2**30 < 37
    assert plain.fits is False
    saving = lw.estimate(**common, grad_checkpointing=True)
    assert saving.memory["activations"] < plain.memory["activations"] / 3
    assert saving.fits is True
    assert plain.steps == 82_081 // 64


def test_memory_beside_activations() -> None:
    changes = {"backbone": "test_resnet", "size": 32, "freeze": "none", "head": "gap", "batch_size": 8}
    common: dict[str, Any] = {"images": 80, "labels": 5, **changes}
    module = hollow("test_resnet", **{"model.head": "gap", "model.options": {}})
    weights = sum(p.nbytes for p in module.parameters())
    learning = sum(p.nbytes for p in module.parameters() if p.requires_grad)
    buffers = sum(b.nbytes for b in module.buffers())
    adam = lw.estimate(**common, ema=0.9).memory
    assert adam["weights"] == adam["averaged weights"] == weights + buffers
    assert (adam["gradients"], adam["optimizer"]) == (learning, 2 * learning)
    assert lw.estimate(**common, optimizer={"name": "sgd"}).memory["optimizer"] == learning
    sharded = lw.estimate(**common, ema=0.9, strategy="fsdp", gpus=2).memory
    assert sharded["optimizer"] == learning
    assert sharded["averaged weights"] == (weights + buffers) // 2


def test_a_frozen_backbone_is_computed_once() -> None:
    frozen = lw.estimate(images=320, labels=5, size=64, augmentation={"flip": 0.5})
    assert frozen.flops < frozen.flops_once
    plain = lw.estimate(images=320, labels=5, size=64, augmentation={"flip": 0.0})
    assert frozen.flops_once == 2 * plain.flops_once  # mirrored images have features of their own
    assert frozen.memory["gradients"] < frozen.memory["weights"] / 2


def test_none_is_a_value_of_a_setting() -> None:
    assert lw.estimate(images=320, labels=5, head=None, **{"model.size": None}).recipe.model.size is None


def test_the_command_reads_labels_but_no_images(tmp_path: Path, labelwise: Any) -> None:
    rows = [f"{number}.jpg,{('cat', 'dog')[number % 2]},{'train' if number < 32 else 'val'}" for number in range(40)]
    (tmp_path / "photos.csv").write_text("\n".join(["image,labels,split", *rows]))
    data = f"{tmp_path / 'photos.csv'}?check_files=no"
    words = ["train", "--data", data, "--dry-run", "--backbone", "test_resnet", "--size", "32", "--batch-size", "8"]
    printed = labelwise(*words, "--gpu", "a100", cwd=tmp_path).stdout
    assert "2 labels" in printed
    assert "4 an epoch of 32 images" in printed
    assert "minutes on 1 x A100 at 30% of its peak" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["photos.csv"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give the data, or how many images and labels"),
        ({"images": 9, "labels": 2, "gpu": "k80"}, "unknown GPU 'k80'"),
        ({"images": 9, "labels": 2, "gpu": "v100", "precision": "bf16-mixed"}, "V100 has no bfloat16"),
        ({"images": 9, "labels": 2, "gpus": 3}, "cannot be divided evenly"),
        ({"images": 9, "labels": 2, "utilisation": 30}, "utilisation is a share"),
        ({"images": 0, "labels": 2}, "images"),
        ({"images": 9, "labels": ["cat", "dog"]}, r"labels is how many there are, .* not \['cat', 'dog'\]"),
        ({"images": 9, "labels": 2, "utilisation": "half"}, "utilisation is a share"),
        ({"images": 9, "labels": 2, "start": Path("runs") / "nowhere" / "x"}, "no model 'runs/nowhere/x'"),
    ],
)
def test_mistakes_are_told_before_anything_is_counted(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        lw.estimate(**settings)


@pytest.mark.parametrize("path", [HSQ_CVN, *(pytest.param(path, marks=pytest.mark.slow) for path in paper_recipes())])
def test_every_paper_recipe_can_be_counted_and_its_header_says_what_was(path: Path) -> None:
    cost = costs(path)
    assert cost.total_memory > 0
    assert cost.gpu == GPUS["v100"]
    stated = [line for line in path.read_text().splitlines() if line.startswith("# Cost")]
    assert stated in ([], [cost_line(cost)])
    assert any(path.name.startswith(dataset) for dataset in DATASETS)
