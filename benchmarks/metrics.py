"""mAP of COCO's validation size (40,137 images x 80 labels): labelwise against torchmetrics and scikit-learn.

python benchmarks/metrics.py --json metrics.json

One PyTorch thread by default: on a machine with other work to do, OpenMP threads wait for each other and torchmetrics'
times scatter by a factor of 30, all in our favour. labelwise sorts with numpy, on one thread in any case.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torchmetrics
from rich.console import Console
from rich.table import Table
from sklearn.metrics import average_precision_score
from torchmetrics.classification import MultilabelAveragePrecision

from labelwise.metrics import mean_average_precision


def make_data(images: int, labels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores that know something, about 3.6 % positives as in COCO, at least one per label."""
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(images, labels, generator=generator) < 0.036).long()
    targets[torch.arange(labels) % images, torch.arange(labels)] = 1
    return torch.sigmoid(torch.randn(images, labels, generator=generator) + 2 * targets - 3), targets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=40_137)
    parser.add_argument("--labels", type=int, default=80)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    scores, targets = make_data(options.images, options.labels)

    def with_torchmetrics() -> float:
        metric = MultilabelAveragePrecision(options.labels, average="macro", thresholds=None)
        metric.update(scores, targets)
        return metric.compute().item()

    contestants: dict[str, Callable[[], float]] = {
        "labelwise": lambda: mean_average_precision(scores, targets),
        "torchmetrics": with_torchmetrics,
        "scikit-learn": lambda: float(average_precision_score(targets.numpy(), scores.numpy(), average="macro")),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    values = {name: run() for name, run in contestants.items()}  # also warms up
    for _ in range(options.repeats):
        for name, run in contestants.items():  # in turns, so that a busy moment hits all of them
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    fastest = {name: min(times) for name, times in seconds.items()}

    title = (
        f"mAP of {options.images:,} x {options.labels}: seconds of {options.repeats} runs, {options.threads} thread(s)"
    )
    table = Table(title=title)
    for column in ("", "median", "ratio", "fastest", "ratio", "mAP", "difference"):
        table.add_column(column, justify="right" if column else "left")
    for name in contestants:
        cells = []
        for times in (medians, fastest):
            cells += [f"{times[name]:.4f}", f"{times[name] / times['labelwise']:.1f}"]
        difference = abs(values[name] - values["labelwise"])
        table.add_row(name, *cells, f"{values[name]:.9f}", f"{difference:.1e}")
    Console().print(table)
    if options.json:
        report = {
            "images": options.images,
            "labels": options.labels,
            "seconds": seconds,
            "speedup_over_torchmetrics": {
                "median": medians["torchmetrics"] / medians["labelwise"],
                "fastest": fastest["torchmetrics"] / fastest["labelwise"],
            },
            "difference_to_torchmetrics": abs(values["torchmetrics"] - values["labelwise"]),
            "mAP": values,
            "versions": {"torch": torch.__version__, "torchmetrics": torchmetrics.__version__, "numpy": np.__version__},
            "machine": {"processor": platform.processor() or platform.machine(), "threads": options.threads},
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
