"""What a training will need: memory on each GPU, computation, steps and hours, counted before anything is trained."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labelwise.core.errors import LabelwiseError, counted, unknown_name
from labelwise.core.tables import html_table
from labelwise.heads import preset, with_options
from labelwise.model.complexity import measure_complexity
from labelwise.model.model import LabelModel
from labelwise.model.towers import open_tower
from labelwise.training.check import check_batch
from labelwise.training.display import Display
from labelwise.training.distributed import precision_here
from labelwise.training.model_options import apply_options
from labelwise.training.optimizer import create_optimizer
from labelwise.training.recipe import ModelRecipe, Recipe
from labelwise.training.setup import build_model
from labelwise.training.step_cost import StepCost, count_step
from labelwise.training.tables import open_tables
from labelwise.words.config import USUAL_DIM, tower_words

GIB = 2**30
CUDA_ITSELF = GIB  # its context and libraries, and what the allocator cannot use: about this much
UTILISATION = 0.3  # of the peak: what well-fed convolutional networks reach; transformers reach more


@dataclass(frozen=True)
class Gpu:
    """Dense peak numbers as NVIDIA's data sheets state them, without sparsity."""

    name: str
    memory: int  # GiB
    half: float  # TFLOP/s of the tensor cores in float16 or bfloat16, accumulated in float32
    full: float  # TFLOP/s in float32, without TF32
    bfloat16: bool = True


GPUS = {
    "t4": Gpu("T4", 16, 65, 8.1, bfloat16=False),
    "v100": Gpu("V100", 32, 125, 15.7, bfloat16=False),
    "a10": Gpu("A10", 24, 125, 31.2),
    "a100": Gpu("A100", 80, 312, 19.5),
    "l4": Gpu("L4", 24, 121, 30.3),
    "l40s": Gpu("L40S", 48, 362, 91.6),
    "h100": Gpu("H100", 80, 989, 67),
    "h200": Gpu("H200", 141, 989, 67),
    "b200": Gpu("B200", 180, 2250, 75),
    "rtx3090": Gpu("RTX 3090", 24, 71, 35.6),
    "rtx4090": Gpu("RTX 4090", 24, 165, 82.6),
}


@dataclass(frozen=True)
class Estimate:
    """What a training will need; printed, a table.

    Attributes:
        recipe: What was counted.
        images: Training images.
        labels: Labels.
        processes: GPUs that share the batch.
        memory: Bytes on each of them: weights, gradients, optimizer, averaged weights, activations.
        steps: Steps in an epoch, with a backward pass each.
        flops: Floating point operations of an epoch on all GPUs together, two per multiply-add.
        flops_once: Those of the frozen backbone, whose features are computed once for each training image and, with
            `flip`, for its mirror image. Validation images are not counted.
        gpu: The GPU for which `hours` are estimated.
        utilisation: The share of its peak that is assumed for that.
    """

    recipe: Recipe
    images: int
    labels: int
    processes: int
    memory: dict[str, int]
    steps: int
    flops: int
    flops_once: int = 0
    gpu: Gpu | None = None
    utilisation: float = UTILISATION

    @property
    def total_memory(self) -> int:
        return sum(self.memory.values())

    @property
    def optimizer_steps(self) -> int:
        """Of the whole training."""
        return -(-self.steps // self.recipe.accumulate) * self.recipe.epochs

    @property
    def hours(self) -> float | None:
        """Of the whole training without validation, if images are loaded fast enough; None without a GPU."""
        if self.gpu is None:
            return None
        peak = self.gpu.full if self.recipe.precision == "32-true" else self.gpu.half
        flops = self.flops * self.recipe.epochs + self.flops_once
        return flops / (peak * 1e12 * self.utilisation * self.processes) / 3600

    @property
    def fits(self) -> bool | None:
        """Whether the memory of the GPU is enough; None without a GPU."""
        return None if self.gpu is None else self.total_memory + CUDA_ITSELF <= self.gpu.memory * GIB

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: everything but the recipe."""
        return {
            "images": self.images,
            "labels": self.labels,
            "processes": self.processes,
            "memory": {**self.memory, "total": self.total_memory},
            "steps_per_epoch": self.steps,
            "optimizer_steps": self.optimizer_steps,
            "flops_per_epoch": self.flops,
            "flops_once": self.flops_once,
            "gpu": None if self.gpu is None else self.gpu.name,
            "hours": self.hours,
            "fits": self.fits,
        }

    def rows(self) -> list[tuple[str, str]]:
        """What is printed, as pairs of a name and a text."""
        recipe, model = self.recipe, self.recipe.model
        size = f", {model.size} x {model.size} pixels" if model.size else ""
        gpus = f"{self.processes} GPU{'s' * (self.processes > 1)}"
        each = f"{recipe.batch_size // self.processes} on each, " if self.processes > 1 else ""
        parts = ", ".join(f"{name} {_size(part)}" for name, part in self.memory.items() if part)
        once = f", and {self.flops_once:.2e} for the features" if self.flops_once else ""
        rows = [
            ("model", f"{model.head} on {model.backbone}{size}, {counted(self.labels, 'label')}"),
            ("batch", f"{recipe.batch_size:,} images on {gpus}, {each}{recipe.precision}"),
            ("memory", f"{_size(self.total_memory)} on each GPU, beside about {_size(CUDA_ITSELF)} for CUDA itself"),
            ("", parts),
            ("steps", f"{self.steps:,} an epoch of {self.images:,} images; {self.optimizer_steps:,} of the optimizer"),
            ("FLOPs", f"{self.flops:.2e} an epoch, {counted(recipe.epochs, 'epoch')}{once}"),
        ]
        if self.gpu is not None and self.hours is not None:
            speed = f"{self.processes} x {self.gpu.name} at {self.utilisation:.0%} of its peak"
            time = f"{self.hours:,.1f} hours" if self.hours > 1 else f"{60 * self.hours:.1f} minutes"
            rows.append(("time", f"{time} on {speed}"))
            saving = "" if recipe.grad_checkpointing or model.freeze == "backbone" else "grad_checkpointing, "
            room = f"a {self.gpu.name} has {self.gpu.memory} GiB"
            advice = f"; try {saving}smaller batches with accumulate, or more GPUs"
            rows.append(("fits", f"yes, {room}" if self.fits else f"no, {room}{advice}"))
        return rows

    def __str__(self) -> str:
        return "\n".join(f"{name:<8}{text}" for name, text in self.rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(("", "estimate"), self.rows())


def estimate(
    recipe: Recipe,
    *,
    images: int | None = None,
    labels: int | None = None,
    gpu: str | None = None,
    processes: int | None = None,
    utilisation: float = UTILISATION,
) -> Estimate:
    """Count what a training will need, in seconds and on any machine: no images, no weights, no GPU.

    Args:
        recipe: What to train (`load_recipe`). Its data, if any, tells the number of images and labels.
        images: Training images, if there is no data.
        labels: Labels, if there is no data.
        gpu: Name of the GPU for the hours, e.g. "a100"; None leaves them out.
        processes: GPUs that share the batch. Default: those of torchrun, else one.
        utilisation: Share of the GPU's peak that is reached.

    Example:
        >>> from labelwise.training import load_recipe
        >>> small = {"model.backbone": "resnet10t", "model.size": 64, "model.freeze": "none", "epochs": 2}
        >>> cost = estimate(load_recipe(None, small), images=3200, labels=20)
        >>> cost.steps, cost.optimizer_steps, round(cost.memory["weights"] / 2**20, 1)
        (100, 200, 25.4)
    """
    processes = processes or int(os.environ.get("WORLD_SIZE", "1"))
    if gpu is not None and gpu.lower() not in GPUS:
        raise unknown_name("GPU", gpu, GPUS)
    chosen = None if gpu is None else GPUS[gpu.lower()]
    if recipe.precision == "auto":
        precision = precision_here(recipe) if chosen is None else "bf16-mixed" if chosen.bfloat16 else "32-true"
        recipe = recipe.model_copy(update={"precision": precision})
    if chosen is not None and recipe.precision == "bf16-mixed" and not chosen.bfloat16:
        raise LabelwiseError(f"a {chosen.name} has no bfloat16; use float16", options={"precision": "16-mixed"})
    check_batch(recipe, processes)
    names: Sequence[str]
    if recipe.data.source is not None:
        table, _ = open_tables(recipe, Display(None))
        images, names = images or len(table), table.labels
    elif images is None or labels is None:
        raise LabelwiseError(
            "give the data, or how many images and labels it has", options={"images": ..., "labels": ...}
        )
    else:
        names = [f"label {number}" for number in range(labels)]
    model = hollow_model(recipe, tuple(names))
    steps = max(1, images // recipe.batch_size)
    recipe = recipe.with_enough_epochs(-(-steps // recipe.accumulate))
    cost, once = count_training_step(model, recipe, recipe.batch_size // processes)
    return Estimate(
        recipe=recipe,
        images=images,
        labels=len(names),
        processes=processes,
        memory=count_memory(model, recipe, processes) | {"activations": cost.activations},
        steps=steps,
        flops=cost.flops * processes * steps,
        flops_once=once * images * (1 + (recipe.augmentation.flip > 0)),
        gpu=chosen,
        utilisation=utilisation,
    )


def hollow_model(recipe: Recipe, labels: tuple[str, ...]) -> LabelModel:
    """The recipe's model on torch's meta device: shapes without values, so weights and words are not needed."""
    settings = recipe.model.model_copy(update={"weights": "none", "start": None})
    head = with_options(preset(settings.head), settings.options, f"head {settings.head!r}")
    with torch.device("meta"):
        words = torch.empty(len(labels), _word_dim(settings)) if head.takes_words else None
        model = build_model(recipe.model_copy(update={"model": settings}), labels, word_vectors=words)
    if recipe.model.freeze == "backbone":
        model.backbone.requires_grad_(False).eval()
    else:
        apply_options(model.backbone, recipe)
    return model


def _word_dim(settings: ModelRecipe) -> int:
    tower = open_tower(settings.backbone).head_options if tower_words(settings.backbone) else {}
    return int({"word_dim": None, **tower, **settings.options}["word_dim"] or USUAL_DIM)


def count_training_step(model: LabelModel, recipe: Recipe, batch_size: int) -> tuple[StepCost, int]:
    """A step on one GPU, and the FLOPs per image of features that are computed once."""
    size = model.config.preprocessing.size
    dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(recipe.precision)
    frozen = recipe.model.freeze == "backbone"
    with torch.device("meta"), torch.no_grad():
        maps = model.backbone.eval()(torch.empty(1, 3, size, size)) if frozen else None  # [1, C, h, w]

    def inputs(pairs: bool) -> Callable[[], dict[str, Tensor]]:
        def make() -> dict[str, Tensor]:
            if maps is not None:
                _, channels, height, width = maps.shape
                return {"x": torch.empty(batch_size, channels, height * (2 if pairs else 1), width)}
            partners = {"partners": torch.empty(batch_size, dtype=torch.int64)} if pairs else {}
            return {"images": torch.empty(batch_size, 3, size, size), **partners}

        return make

    module = model.head.train() if frozen else model.train()
    cost = count_step(module, inputs(False), dtype)
    if recipe.pair_mix:  # a step either joins all maps of its batch in pairs, or none
        paired = count_step(module, inputs(True), dtype)
        mean = recipe.pair_mix * paired.flops + (1 - recipe.pair_mix) * cost.flops
        cost = StepCost(round(mean), max(cost.activations, paired.activations))
    if not frozen:
        return cost, 0
    return cost, 2 * measure_complexity(model).parts["backbone"].macs


def count_memory(model: LabelModel, recipe: Recipe, processes: int) -> dict[str, int]:
    """Bytes on each GPU beside the activations."""
    module = model.head if recipe.model.freeze == "backbone" else model
    optimizer = create_optimizer(module, recipe.optimizer, fused=False)
    for parameter in module.parameters():
        parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
    optimizer.step()  # makes its state
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    trained = _bytes([*module.parameters(), *module.buffers()])
    shards = processes if recipe.strategy == "fsdp" else 1
    found = {
        # FSDP gathers the weights to compute with them, beside its own part.
        "weights": _bytes([*model.parameters(), *model.buffers()]) + (trained // shards if shards > 1 else 0),
        "gradients": _bytes([p for p in module.parameters() if p.requires_grad]) // shards,
        "optimizer": _bytes([state for state in states if state.is_meta]) // shards,
        "averaged weights": trained // shards if recipe.ema else 0,
    }
    optimizer.zero_grad(set_to_none=True)
    return found


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _size(count: int) -> str:
    """
    >>> _size(3 * 2**29), _size(2**20)
    ('1.5 GiB', '1 MiB')
    """
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"
