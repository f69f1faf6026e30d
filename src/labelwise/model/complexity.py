"""Parameters and multiply-adds of a model, part by part, counted on torch's meta device without computing anything."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from labelwise.core.tables import html_table
from labelwise.model.model import LabelModel

# In these parts, a batched product multiplies two activations: queries with keys, weights with values.
_ATTENTION_PARTS = {"backbone", "tokens", "decoder"}
_ATTENTION_OPS = ("bmm", "baddbmm", "scaled_dot_product")


@dataclass(frozen=True)
class PartComplexity:
    parameters: int
    macs: int  # multiply-adds of everything: convolutions, linear layers, both products of every attention
    macs_without_attention: int  # the same without the products inside attention, as some papers count


@dataclass(frozen=True, repr=False)
class Complexity:
    parts: dict[str, PartComplexity]  # backbone, then the head's parts in the order of computation
    size: int  # side of the image in pixels

    def total(self, count: str) -> int:
        return sum(getattr(part, count) for part in self.parts.values())

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: `parameters`, `macs`, `macs_without_attention`, `flops` (two per multiply-add) and `parts`."""
        totals = {count: self.total(count) for count in ("parameters", "macs", "macs_without_attention")}
        return {
            **totals,
            "flops": 2 * totals["macs"],
            "parts": {name: asdict(part) for name, part in self.parts.items()},
        }

    def __repr__(self) -> str:
        parameters, macs = self.total("parameters") / 1e6, self.total("macs") / 1e9
        size = f"{self.size} x {self.size} pixels"
        return f"<Complexity: {parameters:.2f} M parameters, {macs:.2f} G multiply-adds for {size}>"

    def _repr_html_(self) -> str:
        counts = self.to_dict()
        rows = [
            [name, part["parameters"], part["macs"], part["macs_without_attention"]]
            for name, part in [*counts["parts"].items(), ("total", counts)]
        ]
        header = ["part", "parameters", "multiply-adds", "without attention's products"]
        return html_table(header, rows, f"one image of {self.size} x {self.size} pixels")


def measure_complexity(model: LabelModel, size: int | None = None) -> Complexity:
    """Count for one image of `size` x `size` pixels; default: the model's input size."""
    size = size or model.config.preprocessing.size
    # Neither values nor gradients matter, so a copy without storage is enough; the model does not change.
    hollow = copy.deepcopy(model).requires_grad_(False).eval().to("meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        hollow(torch.empty(1, 3, size, size, device="meta"))
    flops = counter.get_flop_counts()  # module path -> operation -> floating point operations, two per multiply-add
    parts: dict[str, tuple[nn.Module, str]] = {"backbone": (hollow.backbone, "LabelModel.backbone")}
    parts |= {name: (part, f"LabelModel.head.{name}") for name, part in hollow.head.named_children()}
    counted = {name: _count(name, *part, flops) for name, part in parts.items() if _matters(*part, flops)}
    rest = _rest(hollow.head, flops, [part for name, part in counted.items() if name != "backbone"])
    return Complexity(counted | ({"head": rest} if rest.parameters or rest.macs else {}), size)


def _rest(head: nn.Module, flops: dict[str, dict[Any, int]], parts: list[PartComplexity]) -> PartComplexity:
    """The head's own parameters and computation, outside of its parts."""
    macs = sum(flops.get("LabelModel.head", {}).values()) // 2 - sum(part.macs for part in parts)
    return PartComplexity(sum(p.numel() for p in head.parameters(recurse=False)), macs, macs)


def _matters(module: nn.Module, path: str, flops: dict[str, dict[Any, int]]) -> bool:
    return any(True for _ in module.parameters()) or path in flops


def _count(name: str, module: nn.Module, path: str, flops: dict[str, dict[Any, int]]) -> PartComplexity:
    operations = {str(operation): count // 2 for operation, count in flops.get(path, {}).items()}
    attention = 0
    if name in _ATTENTION_PARTS:
        attention = sum(macs for operation, macs in operations.items() if any(op in operation for op in _ATTENTION_OPS))
    macs = sum(operations.values())
    return PartComplexity(sum(p.numel() for p in module.parameters()), macs, macs - attention)
