"""`python -m benchmarks.speed folding`: every head against itself without what `heads.optimize` folds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.speed.report import Check, Column, JsonFile, PlotFile, Report

if TYPE_CHECKING:
    from torch import Tensor, nn

# Nothing but the answer is left of their graph layers; the other graphs depend on the image.
ALL_FOLDED = ("ml-gcn", "kssnet")


def folding(
    *,
    labels: int = 80,
    channels: int = 2048,
    side: int = 14,
    batch: int = 1,
    seconds: float = 3.0,
    names: tuple[str, ...] = (),
    json: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """Every head as it was trained against its optimised copy: the same weights, the same logits, in turns.

    What does not depend on the image is computed once: adjacency, label embeddings, graph layers, queries. It weighs
    most where a batch is small.

    Parameters
    ----------
    labels
        Number of labels.
    channels
        Of the map; ResNet-101 has 2048.
    side
        Height and width of the map; 14 is 448 pixels on ResNet-101.
    batch
        Images in a batch.
    seconds
        How long each pair is measured, at least.
    names
        The heads. Default: all.
    """
    import torch

    from labelwise import heads
    from labelwise.core.progress import track
    from labelwise.engines.measure import in_turns

    report = Report(
        "folding",
        f"{labels} labels, maps of {channels} x {side} x {side}, batch {batch}: medians in ms",
        [
            Column("head", "head"),
            Column("parameters_m", "parameters (M)", ".1f"),
            Column("macs_m", "multiply-adds (M)", ",.0f"),
            Column("folded_macs_m", "folded", ",.0f"),
            Column("ms", "time", ".2f"),
            Column("folded_ms", "folded", ".2f"),
            Column("ratio", "faster by", ".2fx"),
        ],
        [],
        settings={"labels": labels, "channels": channels, "side": side, "batch": batch, "seconds": seconds},
        bars={"folded_ms": "folded", "ms": "as trained"},
        unit="ms for a batch, inference",
    )
    x = torch.randn(batch, channels, side, side).relu()
    for name in track(list(names or heads.list_heads()), "Measuring", unit="heads"):
        head = _head(name, channels, labels)
        fast = heads.optimize(head, side * side)
        with torch.inference_mode():
            difference = float((head(x) - fast(x)).abs().max() / head(x).abs().max())
        assert difference < 1e-4, f"{name}: the optimised head differs by {difference}"
        times = in_turns({"plain": _forward(head, x), "folded": _forward(fast, x)}, seconds=seconds)
        report.rows.append(
            {
                "head": name,
                "parameters_m": sum(p.numel() for p in head.parameters()) / 1e6,
                "macs_m": _macs(head, x) / 1e6,
                "folded_macs_m": _macs(fast, x) / 1e6,
                "ms": times["plain"].median,
                "folded_ms": times["folded"].median,
                "ratio": times["plain"].median / times["folded"].median,
                "difference": difference,
            }
        )
    by_name = {row["head"]: row["ratio"] for row in report.rows}
    report.checks = [
        Check(f"{name} folded against {name} as trained", by_name[name], 2) for name in ALL_FOLDED if name in by_name
    ]
    report.publish(json, plot)


def _head(name: str, channels: int, labels: int) -> nn.Module:
    """A head with random weights, words and statistics."""
    import torch

    from labelwise import heads

    torch.manual_seed(0)
    config, options = heads.preset(name), {}
    if config.takes_words:
        options["word_vectors"] = torch.randn(labels, 300 * getattr(config, "descriptions", 1))
    if config.takes_cooccurrence:
        options["cooccurrence"] = torch.rand(labels, labels) ** 3  # few pairs are frequent
    return heads.create(name, in_features=channels, labels=labels, **options).eval().requires_grad_(False)


def _forward(head: nn.Module, x: Tensor) -> Callable[[], object]:
    import torch

    def run() -> None:
        with torch.inference_mode():
            head(x)

    return run


def _macs(head: nn.Module, x: Tensor) -> float:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        head(x)
    return counter.get_total_flops() / 2
