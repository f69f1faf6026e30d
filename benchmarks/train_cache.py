"""Training a head on cached features against recomputing the frozen backbone in every epoch, in one run.

    python benchmarks/train_cache.py [--data SOURCE] [--images 256] [--json FILE]

EfficientNet-Lite2 at 224 pixels with the weights of its pip package; batches of 64; asymmetric loss, AdamW, half of the
images mirrored. Both sides train the same head on the same images. The recomputing side decodes with 2 worker processes
and runs the backbone in evaluation mode without gradients, channels last: the fastest way it can be done here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from labelwise import create_model, losses
from labelwise.data import LabelTable, open_data
from labelwise.data.dataset import ImageDataset, ImageLoader
from labelwise.data.sample import make_sample
from labelwise.data.transforms import eval_transform
from labelwise.features import FeatureCache
from labelwise.model import LabelModel

BATCH, WORKERS = 64, 2
HEADS: dict[str, dict[str, Any]] = {"gap": {}, "hsq": {"dim": 256}}
Batches = Callable[[], Iterator[tuple[Tensor, Tensor]]]  # maps [B, C, H, W] and targets [B, N]


def cached(cache: FeatureCache, table: LabelTable) -> Batches:
    targets = torch.from_numpy(table.targets())  # [M, N]

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.from_numpy(np.random.permutation(cache.rows))
        for rows in order.split(BATCH):
            yield cache.batch(rows, torch.rand(len(rows)) < 0.5), targets[rows]

    return batches


def recomputed(model: LabelModel, table: LabelTable) -> Batches:
    dataset = ImageDataset(table, eval_transform(model.config.preprocessing))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        model.backbone.eval()
        for images, targets, _ in ImageLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS):
            mirrored = torch.rand(len(images)) < 0.5
            images[mirrored] = images[mirrored].flip(-1)
            with torch.no_grad():
                maps = model.backbone(images.contiguous(memory_format=torch.channels_last))
            yield maps, targets

    return batches


def epoch_seconds(model: LabelModel, batches: Batches) -> float:
    """One epoch of training the head."""
    loss = losses.create("asymmetric")
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-4)
    model.head.train()
    start = time.perf_counter()
    for maps, targets in batches():
        optimizer.zero_grad()
        loss(model.head(maps), targets).backward()
        optimizer.step()
    return time.perf_counter() - start


def measure(table: LabelTable, folder: Path, repeats: int) -> tuple[list[dict[str, Any]], float]:
    """A row for each head, and how many images/s went into the cache (each computed twice: mirrored as well)."""
    rows, building = [], 0.0
    for head, options in HEADS.items():
        model = create_model("tf_efficientnet_lite2", head, table.labels, weights="package", size=224, **options)
        start = time.perf_counter()
        cache = FeatureCache.build(table, model.backbone, model.config.preprocessing, folder=folder, workers=WORKERS)
        building = building or len(table) / (time.perf_counter() - start)  # the second head finds it there
        sides = {"cache": cached(cache, table), "backbone": recomputed(model, table)}
        epoch_seconds(model, sides["cache"])  # warm up
        times: dict[str, list[float]] = {"cache": [], "backbone": []}
        for _ in range(repeats):  # in turns, so that other load on the machine meets both
            times["backbone"].append(epoch_seconds(model, sides["backbone"]))
            times["cache"] += [epoch_seconds(model, sides["cache"]) for _ in range(3)]
        speed = {side: len(table) / statistics.median(some) for side, some in times.items()}
        rows.append(
            {
                "head": head,
                "options": options,
                "cache_images_per_s": speed["cache"],
                "backbone_images_per_s": speed["backbone"],
                "ratio": speed["cache"] / speed["backbone"],
            }
        )
    return rows, building


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="what labelwise's --data takes; default: drawn sample pictures")
    parser.add_argument("--images", type=int, default=256, help="how many of them")
    parser.add_argument(
        "--repeats", type=int, default=1, help="epochs of recomputing; three times as many on the cache"
    )
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/train_cache.json"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    np.random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.data:
            table = open_data(arguments.data)
        else:
            table = make_sample(Path(folder) / "sample", images=arguments.images, size=256)
        table = table.select(np.arange(min(arguments.images, len(table))))
        rows, building = measure(table, Path(folder) / "cache", arguments.repeats)
    title = f"{len(table)} images, one epoch; the cache was built at {building:.1f} images/s"
    shown = Table("head", "on the cache (images/s)", "recomputing (images/s)", "faster by", title=title)
    for row in rows:
        name = " ".join([row["head"], *(f"{key}={value}" for key, value in row["options"].items())])
        numbers = (row["cache_images_per_s"], row["backbone_images_per_s"])
        shown.add_row(name, *(f"{number:,.1f}" for number in numbers), f"{row['ratio']:.1f}x")
    Console(width=100).print(shown)
    content = {
        "images": len(table),
        "labels": len(table.labels),
        "batch": BATCH,
        "build_images_per_s": building,
        "machine": {
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
            "load_average": os.getloadavg()[0],
            "torch": torch.__version__,
        },
        "rows": rows,
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
