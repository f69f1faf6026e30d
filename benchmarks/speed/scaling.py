"""`python -m benchmarks.speed scaling`: what each head costs as the labels grow, after ML-Decoder's table 9."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from json import dumps, loads
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from benchmarks.speed.report import JsonFile, PlotFile
from labelwise.core.errors import LabelwiseError, missing_extra, unknown_name

Mode = Literal["inference", "training"]


class Contestant(NamedTuple):
    preset: str
    grouped: bool  # a fixed number of queries, whatever the number of labels


HEADS = {
    "gap": Contestant("gap", False),
    "transformer-decoder": Contestant("transformer-decoder", False),
    "q2l": Contestant("q2l", False),
    "ml-decoder": Contestant("ml-decoder", True),
    "hsq": Contestant("hsq", False),
    "grouped-hsq": Contestant("hsq", True),
}


_SEVERAL = Parameter(consume_multiple=True, negative=())  # --labels 100 1000


def scaling(
    *,
    labels: Annotated[tuple[int, ...], _SEVERAL] = (100, 1000, 5000, 10000),
    heads: Annotated[tuple[str, ...], _SEVERAL] = tuple(HEADS),
    modes: Annotated[tuple[Mode, ...], _SEVERAL] = ("inference", "training"),
    batch: int = 8,
    channels: int = 2048,
    side: int = 7,
    dim: int = 768,
    groups: int = 100,
    seconds: float = 2.0,
    rounds: int = 2,
    memory_limit: float = 8.0,
    time_limit: float = 300.0,
    threads: int | None = None,
    json: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """Time, memory and parameters of the heads for many labels.

    The defaults follow ML-Decoder's table 9: what TResNet-M gives for images of 224 pixels, 2048 channels of 7 x 7
    cells, and 100 groups; all query heads work with 768 dimensions. Each measurement has a process of its own with a
    limit to its memory and time: a head that does not fit is a row of the table. Memory is the most that the process
    held beyond what it held before the head was built: weights, inputs, intermediate results and, in training,
    gradients (the optimizer's own state is not counted). Times are for a batch; the processes take turns, and of
    several rounds the fastest counts.

    Parameters
    ----------
    labels
        Numbers of labels.
    heads
        gap, transformer-decoder, q2l, ml-decoder, hsq, grouped-hsq.
    modes
        inference: forward; training: forward, loss and backward.
    batch
        Images in a batch.
    channels
        Of the feature map.
    side
        Of the feature map, in cells.
    dim
        Dimensions of tokens and queries.
    groups
        Queries of ml-decoder and grouped-hsq.
    seconds
        How long each process measures, at least.
    rounds
        How many processes measure the same.
    memory_limit
        In GB.
    time_limit
        Of each process, in seconds.
    threads
        Of PyTorch; default: its own choice.
    """
    from benchmarks.speed.report import Column, Report
    from labelwise.core.progress import track

    for name in heads:
        if name not in HEADS:
            raise unknown_name("head", name, HEADS)
    shared = {"batch": batch, "channels": channels, "side": side, "seconds": seconds, "threads": threads}
    shared["memory_limit"] = memory_limit
    cases = [
        (name, _case(name, number, dim, groups, mode) | shared) for name in heads for number in labels for mode in modes
    ]
    results: dict[int, dict[str, Any]] = {}
    turns = [number for _ in range(rounds) for number in range(len(cases))]
    for turn in track(turns, "Measuring", unit="runs"):
        before = results.get(turn)
        if before is None or before["status"] == "ok":  # what did not fit once does not fit the next time
            results[turn] = _better(before, run_case(cases[turn][1], time_limit))
    rows = _rows([(name, case, results[number]) for number, (name, case) in enumerate(cases)], groups)
    units = [(mode, unit) for mode in modes for unit in ("ms", "MB")]
    report = Report(
        "scaling",
        f"Heads on maps of {channels} x {side} x {side}, batches of {batch}",
        [
            Column("head", "head"),
            Column("labels", "labels", ",d"),
            Column("queries", "queries", ",d"),
            Column("parameters", "parameters", ",d"),
            *(Column(f"{mode}_{unit}", f"{mode}, {unit}", ",.1f" if unit == "ms" else ",.0f") for mode, unit in units),
        ],
        rows,
        settings={**shared, "dim": dim, "groups": groups, "rounds": rounds, "time_limit": time_limit},
    )
    report.publish(json, None)
    if plot is not None:
        draw(rows, modes, plot)


def run_case(case: dict[str, Any], time_limit: float) -> dict[str, Any]:
    """The result of a case, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.speed.scaling_worker", dumps(case)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=time_limit, check=False)
    except subprocess.TimeoutExpired:
        return {"status": "out of time"}
    if done.returncode in (-signal.SIGKILL, -signal.SIGABRT):  # by the system, or by a library that cannot allocate
        return {"status": "out of memory"}
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LabelwiseError(f"{case['head']} with {case['labels']} labels cannot be measured: {reason}")
    result: dict[str, Any] = loads(done.stdout.splitlines()[-1])
    return result


def draw(rows: list[dict[str, Any]], modes: Sequence[Mode], path: Path) -> None:
    """Time and memory over the number of labels, a line for each head."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("matplotlib", "plots") from None
    figure = Figure(figsize=(5.5 * len(modes), 7), layout="constrained")
    axes = figure.subplots(2, len(modes), squeeze=False, sharex=True)
    for column, mode in enumerate(modes):
        for place, unit in enumerate(("ms", "MB")):
            plane = axes[place, column]
            for name in dict.fromkeys(row["head"] for row in rows):
                points = [(row["labels"], row[f"{mode}_{unit}"]) for row in rows if row["head"] == name]
                measured = [point for point in points if isinstance(point[1], float)]
                plane.plot(*zip(*measured, strict=True) if measured else ([], []), marker="o", label=name)
            plane.set(xscale="log", yscale="log", ylabel=f"{unit} for a batch", title="" if place else mode)
            plane.grid(alpha=0.3)
        axes[1, column].set_xlabel("labels")
    axes[0, 0].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _case(name: str, labels: int, dim: int, groups: int, mode: str) -> dict[str, Any]:
    head = HEADS[name]
    options: dict[str, Any] = {} if head.preset == "gap" else {"dim": dim}
    if head.grouped:
        options["groups"] = groups
    return {"head": head.preset, "options": options, "labels": labels, "mode": mode}


def _better(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """Of two measurements the faster; one that failed says what can happen, and stands."""
    if before is None or now["status"] != "ok":
        return now
    return min(before, now, key=lambda result: result["milliseconds"])


def _rows(results: list[tuple[str, dict[str, Any], dict[str, Any]]], groups: int) -> list[dict[str, Any]]:
    """A row for each head and number of labels; where a time would be, what went wrong."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for name, case, result in results:
        labels, mode = case["labels"], case["mode"]
        queries = None if name == "gap" else min(groups, labels) if HEADS[name].grouped else labels
        row = rows.setdefault((name, labels), {"head": name, "labels": labels, "queries": queries, "parameters": None})
        row["parameters"] = row["parameters"] or result.get("parameters")
        row[f"{mode}_ms"] = result["milliseconds"] if result["status"] == "ok" else result["status"]
        row[f"{mode}_MB"] = result.get("megabytes")
    return list(rows.values())
