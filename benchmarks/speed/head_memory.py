"""`python -m benchmarks.speed memory`: what the heads take in inference and in training."""

from __future__ import annotations

from typing import Any

from benchmarks.speed.report import Column, JsonFile, PlotFile, Report

# Labels and heads with their options; the last of a group is the one the others are compared with.
GROUPS: tuple[tuple[int, tuple[tuple[str, dict[str, Any]], ...]], ...] = (
    *(
        (labels, (("ml-decoder", {"groups": 100}), ("timm ml-decoder", {"groups": 100})))
        for labels in (100, 1000, 5000)
    ),
    (80, (("hsq", {"dim": 512}), ("q2l", {"dim": 512}), ("literal hsq", {"dim": 512}))),
)


def memory(*, batch: int = 8, time_limit: float = 600.0, json: JsonFile = None, plot: PlotFile = None) -> None:
    """Memory of heads, against timm's ML-Decoder and HSQ's Algorithm 1 as printed.

    Each measurement has a process of its own. What counts is the most that it held beyond what it held before the head
    was built: weights, inputs, intermediate results and, in training, gradients. Linux only.

    Parameters
    ----------
    batch
        Images in a batch; maps are 2048 x 7 x 7.
    time_limit
        Of each process, in seconds.
    """
    from benchmarks.speed.scaling import run_case
    from labelwise.core.progress import track

    cases = [(labels, name, options) for labels, group in GROUPS for name, options in group]
    rows: list[dict[str, Any]] = []
    for labels, name, options in track(cases, "Measuring", unit="runs"):
        case = {"head": name, "labels": labels, "options": options, "batch": batch, "seconds": 0.0}
        found = {mode: run_case({**case, "mode": mode}, time_limit) for mode in ("inference", "training")}
        rows.append(
            {
                "head": f"{name}, {labels:,} labels",
                "parameters_m": (found["inference"].get("parameters") or 0) / 1e6,
                **{f"{mode}_mb": result.get("megabytes") for mode, result in found.items()},
            }
        )
    Report(
        "memory",
        f"Memory of heads on maps of 2048 x 7 x 7, batch {batch}",
        [
            Column("head", "head"),
            Column("parameters_m", "parameters (M)", ".1f"),
            Column("inference_mb", "inference (MB)", ",.0f"),
            Column("training_mb", "training (MB)", ",.0f"),
        ],
        rows,
        settings={"batch": batch},
        bars={"inference_mb": "inference", "training_mb": "training"},
        unit="MB",
    ).publish(json, plot)
