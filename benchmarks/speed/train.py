"""`python -m benchmarks.speed train`: a training step with and without the feature cache, and what it is made of."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.speed.report import Check, Column, JsonFile, PlotFile, Report
from labelwise.core.errors import LabelwiseError

if TYPE_CHECKING:
    from torch import Tensor

    from labelwise.data import LabelTable
    from labelwise.features import FeatureCache
    from labelwise.model.model import LabelModel

HEADS: dict[str, dict[str, Any]] = {"gap": {}, "hsq": {"dim": 256}}
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


def train(
    *,
    data: str | None = None,
    images: int = 512,
    batch: int = 64,
    repeats: int = 1,
    backbone: str = "tf_efficientnet_lite2",
    json: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """Training a head on cached features against recomputing the frozen backbone in every epoch.

    Asymmetric loss, AdamW, half of the images mirrored. The recomputing side decodes with 2 worker processes and runs
    the backbone without gradients, channels last: the fastest that eager PyTorch does. A step on the cache is then
    compared with the machine's arithmetic limit: the time that its multiply-adds take at the speed of one large matrix
    product, measured in the same run. The cache is built on every engine, against an eager timm + Pillow loop.

    Parameters
    ----------
    data
        What --data of `labelwise train` takes; default: synthetic images.
    images
        How many of them.
    batch
        Images in a batch.
    repeats
        Epochs of recomputing; three times as many on the cache.
    backbone
        At 224 pixels, with pretrained weights if they are installed.
    """
    import numpy as np
    import torch

    from labelwise.data import open_data
    from labelwise.data.sample import make_sample

    torch.manual_seed(0)
    np.random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        table = open_data(data) if data else make_sample(Path(folder) / "sample", images=images, size=256)
        table = table.select(np.arange(min(images, len(table))))
        limit = plain_product_speed()
        cache, build_rows, left_out = _build(table, backbone, Path(folder))
        rows = [_measure(name, table, cache, backbone, batch, repeats, limit) for name in HEADS]
    report = Report(
        "train",
        f"Head training on {len(table):,} images of {len(table.labels)} labels, batch {batch}",
        [
            Column("case", "case"),
            Column("images_per_s", "images/s", ",.0f"),
            Column("peer", "against"),
            Column("peer_images_per_s", "its images/s", ",.0f"),
            Column("ratio", "faster by", ".1fx"),
            Column("step_ms", "step (ms)", ".1f"),
            Column("products", "in matrix products (%)", ".0f"),
            Column("of_limit", "of the arithmetic limit (%)", ".0f"),
        ],
        rows + build_rows,
        notes=[
            f"the arithmetic limit here: {limit / 1e9:.0f} GFLOP/s, a product of two 2048 x 2048 matrices",
            *(f"left out: {name} ({why})" for name, why in left_out.items()),
        ],
        settings={"images": len(table), "batch": batch, "backbone": backbone, "limit_flops": limit},
        bars={"images_per_s": "labelwise", "peer_images_per_s": "the other"},
        unit="images/s",
    )
    report.checks = [
        Check("an epoch of HSQ on the cache against recomputing", rows[-1]["ratio"], 5),
        Check("cache building on the best engine", max(float(row["ratio"]) for row in build_rows), 3),
    ]
    report.publish(json, plot)


def plain_product_speed(size: int = 2048) -> float:
    """Floating point operations per second of one large matrix product: what this machine can do at best."""
    import torch

    from labelwise.engines.measure import in_turns

    a, b = torch.randn(2, size, size)
    best = in_turns({"product": lambda: a @ b}, seconds=1)["product"].best
    return 2 * size**3 / (best / 1e3)


def _build(table: LabelTable, backbone: str, folder: Path) -> tuple[FeatureCache, list[dict[str, Any]], dict[str, str]]:
    """The cache, images/s into it by engine (without mirrored images, as the eager loop), and who is left out."""
    import numpy as np

    from benchmarks.speed.eager_loop import EagerLoop
    from labelwise.features import FeatureCache
    from labelwise.runtime.sessions import FAMILIES

    model = _model("gap", table, backbone)
    loop = EagerLoop(model, batch_size=32)
    loop.maps(table.images[:64])  # warm up
    start = time.perf_counter()
    loop.maps(table.images)
    eager = len(table) / (time.perf_counter() - start)
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for family in FAMILIES:

        def build(part: LabelTable, place: Path, flips: bool, family: Any = family) -> FeatureCache:
            preprocessing = model.config.preprocessing
            return FeatureCache.build(
                part, model.backbone, preprocessing, flips=flips, folder=place, progress=False, engine=family
            )

        try:
            build(table.select(np.arange(8)), folder / "first", False)  # converts the network for the engine
        except LabelwiseError as error:
            left_out[family] = str(error)
            continue
        start = time.perf_counter()
        build(table, folder / family, False)
        speed = len(table) / (time.perf_counter() - start)
        rows.append(
            {
                "case": f"cache building, {family}",
                "engine": family,
                "images_per_s": speed,
                "peer": "eager timm + Pillow loop",
                "peer_images_per_s": eager,
                "ratio": speed / eager,
            }
        )
    best = max(rows, key=lambda row: float(row["images_per_s"]))["engine"]
    cache = FeatureCache.build(
        table, model.backbone, model.config.preprocessing, folder=folder / best, progress=False, engine=best
    )
    return cache, rows, left_out


def _model(head: str, table: LabelTable, backbone: str) -> LabelModel:
    from labelwise.model.model import create_model

    return create_model(backbone, head, table.labels, weights="auto", size=224, **HEADS[head])


def _measure(
    head: str, table: LabelTable, cache: FeatureCache, backbone: str, batch: int, repeats: int, limit: float
) -> dict[str, Any]:
    import statistics

    model = _model(head, table, backbone)
    trainer = HeadTrainer(model)
    on_cache, recomputed = _cached(cache, table, batch), _recomputed(model, table, batch)
    trainer.epoch_seconds(on_cache)  # warm up
    times: dict[str, list[float]] = {"cache": [], "backbone": []}
    for _ in range(repeats):  # in turns, so that other load on the machine meets both
        times["backbone"].append(trainer.epoch_seconds(recomputed))
        times["cache"] += [trainer.epoch_seconds(on_cache) for _ in range(3)]
    speed = {side: len(table) / statistics.median(some) for side, some in times.items()}
    maps, targets = next(on_cache())
    return {
        "case": " ".join([head, *(f"{key}={value}" for key, value in HEADS[head].items())]) + ", on the cache",
        "images_per_s": speed["cache"],
        "peer": "recomputing the backbone",
        "peer_images_per_s": speed["backbone"],
        "ratio": speed["cache"] / speed["backbone"],
        **trainer.profile(maps, targets, limit),
    }


class HeadTrainer:
    """Trains a model's head as the training loop does."""

    def __init__(self, model: LabelModel) -> None:
        from labelwise import losses
        from labelwise.training.optimizer import create_optimizer
        from labelwise.training.recipe import OptimizerRecipe

        self.head = model.head.train()
        self.loss = losses.create("asymmetric")
        self.optimizer = create_optimizer(model.head, OptimizerRecipe())

    def step(self, maps: Tensor, targets: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(self.head(maps), targets).backward()
        self.optimizer.step()

    def epoch_seconds(self, batches: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> float:
        start = time.perf_counter()
        for maps, targets in batches():
            self.step(maps, targets)
        return time.perf_counter() - start

    def profile(self, maps: Tensor, targets: Tensor, limit: float) -> dict[str, float]:
        """A step: its time, the share of it in matrix products, and how near it is to `limit` (operations/s)."""
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        from labelwise.engines.measure import in_turns

        milliseconds = in_turns({"step": lambda: self.step(maps, targets)}, seconds=2)["step"].best
        with FlopCounterMode(display=False) as counter:
            self.step(maps, targets)
        with torch.profiler.profile() as profile:
            self.step(maps, targets)
        spent = {event.key: event.self_cpu_time_total for event in profile.key_averages()}
        ideal = counter.get_total_flops() / limit * 1e3
        return {
            "step_ms": milliseconds,
            "products": 100 * sum(spent.get(name, 0) for name in _PRODUCTS) / sum(spent.values()),
            "of_limit": 100 * ideal / milliseconds,
        }


def _cached(cache: FeatureCache, table: LabelTable, batch: int) -> Callable[[], Iterator[tuple[Tensor, Tensor]]]:
    import numpy as np
    import torch

    targets = torch.from_numpy(table.targets())  # [M, N]

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.from_numpy(np.random.permutation(cache.rows)).split(batch):
            yield cache.batch(rows, torch.rand(len(rows)) < 0.5), targets[rows]

    return batches


def _recomputed(model: LabelModel, table: LabelTable, batch: int) -> Callable[[], Iterator[tuple[Tensor, Tensor]]]:
    import torch

    from labelwise.backbones.timm_backbone import put_channels_last
    from labelwise.loading.augment import eval_transform
    from labelwise.loading.dataset import ImageDataset, ImageLoader

    dataset = ImageDataset(table, eval_transform(model.config.preprocessing))
    put_channels_last(model.backbone.eval())

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for images, targets, _ in ImageLoader(dataset, batch_size=batch, shuffle=True, num_workers=2):
            mirrored = torch.rand(len(images)) < 0.5
            images[mirrored] = images[mirrored].flip(-1)
            with torch.no_grad():
                maps = model.backbone(images.contiguous(memory_format=torch.channels_last))
            yield maps, targets

    return batches
