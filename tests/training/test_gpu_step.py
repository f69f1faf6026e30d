"""Training on a GPU without a GPU: fake tensors of device "cuda" go through a whole step, and a tensor that was left
on the CPU raises. bfloat16 runs for real, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

import labelwise as lw
from labelwise.loading.augment import batch_mix
from labelwise.metrics import MultiLabelMetrics
from labelwise.model.model import LabelModel
from labelwise.model.network import TorchEngine
from labelwise.training.averaging import AveragedWeights
from labelwise.training.loop import Progress, Trainer
from labelwise.training.optimizer import create_optimizer
from labelwise.training.train import train
from run_kit import recipe

PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
LABELS = 5


@pytest.fixture(autouse=True)
def _as_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda *_: True)
    # Fake numbers have no value. Where code asks for one (a loss, a random choice), it gets this.
    monkeypatch.setattr(FakeTensor, "__float__", lambda _: 0.5, raising=False)
    monkeypatch.setattr(FakeTensor, "__int__", lambda _: 0, raising=False)
    monkeypatch.setattr(FakeTensor, "__bool__", lambda _: False, raising=False)
    monkeypatch.setattr(FakeTensor, "numpy", as_array, raising=False)
    monkeypatch.setattr(FakeTensor, "__array__", as_array, raising=False)


def as_array(tensor: Tensor, *_: Any, **__: Any) -> np.ndarray:
    assert tensor.device.type == "cpu", "NumPy reads no memory of a GPU"
    return np.zeros(tensor.shape, str(tensor.dtype).removeprefix("torch."))


class FakeFabric:
    """What the trainer asks of Lightning Fabric, for one GPU that is not there."""

    device, world_size, global_rank, is_global_zero = torch.device("cuda"), 1, 0, True

    def __init__(self, precision: str) -> None:
        self.dtype = PRECISIONS[precision]

    def autocast(self) -> Any:
        return torch.autocast("cuda", self.dtype, enabled=self.dtype is not None)

    @contextmanager
    def no_backward_sync(self, module: torch.nn.Module, enabled: bool) -> Iterator[None]:
        yield

    def backward(self, loss: Tensor) -> None:
        """PyTorch's engine asks the driver for its devices, so no gradient can be computed: it is made up."""
        assert loss.device.type == "cuda"
        assert loss.dtype == torch.float32
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    def clip_gradients(self, module: torch.nn.Module, optimizer: Any, **options: Any) -> Tensor:
        return torch.nn.utils.clip_grad_norm_(self.parameters, options["max_norm"])

    def all_reduce(self, value: Tensor, reduce_op: str) -> Tensor:
        return value


def gpu_model(**options: Any) -> LabelModel:
    with unset_fake_temporarily(), torch.device("meta"):
        model = lw.create_model("test_resnet", "hsq", LABELS, weights="none", size=32, **options)
    return model.to_empty(device="cuda")


def make_trainer(wanted: Any, folder: Path) -> Trainer:
    """A trainer whose model is on the GPU, without the parts that look for one."""
    model = gpu_model(**wanted.model.options)
    fabric = FakeFabric(wanted.precision)
    trainer = Trainer.__new__(Trainer)
    trainer.recipe, trainer.labels, trainer.folder, trainer.fabric = wanted, LABELS, folder, fabric  # type: ignore[assignment]
    trainer.batches = [None] * 4  # type: ignore[assignment]
    trainer.steps, trainer.windows, trainer.progress = 8, 4, Progress("")
    trainer.plain, trainer.head, trainer.masks_labels = model.train(), model.head, False
    trainer.averaged = AveragedWeights(trainer.plain, wanted.ema)

    def forward(*args: Tensor, **options: Tensor) -> Tensor:
        with fabric.autocast():
            logits: Tensor = trainer.plain(*args, **options)
        return logits.float()  # as Fabric does

    trainer.module = forward  # type: ignore[assignment]
    trainer.optimizer = trainer.prepared = create_optimizer(trainer.plain, wanted.optimizer, fused=False)
    fabric.parameters = [p for p in trainer.plain.parameters() if p.requires_grad]  # type: ignore[attr-defined]
    trainer.loss = lw.losses.create(wanted.loss.name, **wanted.loss.options)
    trainer.mix = batch_mix(mixup=wanted.mixup, cutmix=wanted.cutmix)
    return trainer


@pytest.mark.parametrize("pair_mix", [0.0, 1.0])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_whole_step_stays_on_the_gpu(precision: str, pair_mix: float, tmp_path: Path) -> None:
    """Batch from the loader to the device, augmentation, forward, loss, clipping, optimizer and average."""
    wanted = recipe(tmp_path, precision=precision, pair_mix=pair_mix, ema=0.9, **{"optimizer.name": "sgd"})
    with FakeTensorMode(allow_non_fake_inputs=True):
        trainer = make_trainer(wanted, tmp_path)
        trainer._step(torch.zeros(4, 3, 32, 32), torch.zeros(4, LABELS, dtype=torch.int8), torch.arange(4), number=0)
        assert trainer.averaged is not None
        assert trainer.averaged.updates == 1
        states = [value for state in trainer.optimizer.state.values() for value in state.values()]
        assert {state.device.type for state in states} == {"cuda"}


def test_a_batch_that_is_left_on_the_cpu_is_noticed(tmp_path: Path) -> None:
    """What makes the test above mean something."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        trainer = make_trainer(recipe(tmp_path, ema=0.9), tmp_path)
        trainer.fabric.device = torch.device("cpu")  # type: ignore[misc]
        with pytest.raises(RuntimeError, match=r"device|devices"):
            trainer._step(
                torch.zeros(4, 3, 32, 32), torch.zeros(4, LABELS, dtype=torch.int8), torch.arange(4), number=0
            )


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_images_are_mixed_on_the_gpu(kind: str) -> None:
    mix = batch_mix(**{kind: 0.4}, repeats=2)  # type: ignore[arg-type]
    assert mix is not None
    with FakeTensorMode(allow_non_fake_inputs=True):
        targets = torch.zeros(4, LABELS, dtype=torch.int8, device="cuda")
        images, mixed = mix(torch.zeros(4, 3, 32, 32, device="cuda"), targets)
        assert {images.device.type, mixed.device.type} == {"cuda"}
        assert images.dtype == mixed.dtype == torch.float32


@pytest.mark.parametrize("precision", PRECISIONS)
def test_validation_computes_on_the_gpu_and_brings_logits_back(precision: str, tmp_path: Path) -> None:
    wanted = recipe(tmp_path, precision=precision, ema=0.9)
    with FakeTensorMode(allow_non_fake_inputs=True):
        trainer = make_trainer(wanted, tmp_path)
        for module in trainer.candidates.values():
            logits = trainer._logits(module.eval(), torch.zeros(4, 3, 32, 32, device="cuda"))
            assert (logits.device.type, logits.dtype, logits.shape) == ("cpu", torch.float32, (4, LABELS))


def test_evaluation_takes_and_gives_numpy_arrays() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        engine = TorchEngine(gpu_model(dim=16, attention_heads=2).eval())
        assert engine(np.zeros((2, 3, 32, 32), np.float32)).shape == (2, LABELS)


def test_metrics_take_logits_from_a_gpu_and_targets_from_the_loader() -> None:
    with FakeTensorMode():
        metrics = MultiLabelMetrics(LABELS, thresholds=0.0, top_k=3)
        metrics.update(torch.zeros(4, LABELS, device="cuda"), torch.zeros(4, LABELS, dtype=torch.int8))
        assert metrics.images == 4


def test_bfloat16_trains_on_the_cpu(sample: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"epochs": 2, "optimizer.lr": 3e-3, "model.head": "gap", "model.options": {}}
    history = {}
    for precision in ("32-true", "bf16-mixed"):
        run = train(recipe(sample, **changes, precision=precision), tmp_path / precision)
        history[precision] = [row["loss"] for row in run.history]
        assert all(p.dtype == torch.float32 for p in run.model().parameters())
    assert history["bf16-mixed"] != history["32-true"]
    assert history["bf16-mixed"] == pytest.approx(history["32-true"], rel=0.1)
