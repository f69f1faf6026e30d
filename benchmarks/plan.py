"""What the large trainings take on 1, 8 and 64 GPUs: hours, processor cores, network, shards and disk.

    python -m benchmarks.plan          # counts, measures this machine, writes docs/results/plan.json and the page
    python -m benchmarks.plan --page   # writes the tables of docs/guides/plan.md from that file

Operations and memory are counted (`lw.estimate`). How much of a GPU's peak is reached follows from a published
training speed; how fast a core decodes and augments images is measured here. `ASSUMED` is everything else.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import labelwise as lw
from labelwise.data.conversion import SHARD_IMAGES
from labelwise.data.table import LabelTable
from labelwise.engines.measure import machine
from labelwise.loading.augment import train_transform
from labelwise.loading.dataset import ImageDataset
from labelwise.training.estimate import GIB, GPUS, hollow_model
from labelwise.training.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "guides" / "plan.md", ROOT / "docs" / "results" / "plan.json"
SECTION = re.compile(r"(?P<start><!-- plan: (?P<name>[a-z0-9-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)

# ML-Decoder, table 9: TResNet-M at 224 pixels, ML-Decoder with 100 queries, on one V100 in mixed precision.
PUBLISHED = {"labels": 5000, "images_per_second": 562}
ASSUMED = {  # name: value, unit, why
    "share_of_peak": ("as published", "", "a V100 in ML-Decoder's table 9; assumed for all GPUs and models"),
    "gpus_per_machine": (8, "", "as in a DGX"),
    "within_machine": (100, "GB/s", "gradients between the GPUs of a machine (NVLink)"),
    "between_machines": (100, "Gbit/s", "gradients between machines; storage has its own network"),
    "overlap": (0, "", "gradients are exchanged after the backward pass; DDP overlaps part of it"),
    "cores_per_gpu": (8, "", "cores that load images: `workers: 8` of the recipes"),
    "gradient_bytes": (4, "bytes", "per parameter: float32"),
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """A training: its recipe and data, and how the batch is shared (batch, accumulate, learning rate factor)."""

    title: str
    recipe: str
    data: str
    images: int
    validation: int
    labels: int
    photo: tuple[int, int]  # pixels of a typical one
    archive: tuple[int, int, str]  # bytes, photos in it, and who says so
    batches: dict[int, tuple[int, int, float]]

    @property
    def photo_bytes(self) -> float:
        size, photos, _ = self.archive
        return size / photos


WORKS = {
    "open-images": Work(
        "Open Images V6, ML-Decoder with 200 queries, TResNet-M at 224",
        "recipes/ml-decoder/open-images-k200.yaml",
        "openimages:/data/openimages",
        *(9_011_219, 41_620, 9_600, (1024, 768)),
        (513_000_000_000, 1_743_042, "CVDF's copy with at most 1,024 pixels a side, per its README"),
        {1: (56, 1, 1), 8: (448, 1, 8**0.5), 64: (3_584, 1, 8)},
    ),
    "coco": Work(
        "COCO 2014, HSQ, ResNet-101 at 576",
        "recipes/hsq/coco-resnet101-576.yaml",
        "coco:/data/coco2014",
        *(82_081, 40_137, 80, (640, 480)),
        (13_510_573_713, 82_783, "train2014.zip, per its server"),
        {1: (16, 4, 1), 8: (64, 1, 1), 64: (512, 1, 8**0.5)},
    ),
    "imagenet": Work(
        "ImageNet, ML-Decoder with 100 queries, ResNet-50 at 224, 300 epochs",
        "recipes/ml-decoder/imagenet-a2.yaml",
        "imagefolder:/data/imagenet",
        *(1_281_167, 50_000, 1_000, (500, 375)),
        (147_897_477_120, 1_281_167, "ILSVRC2012_img_train.tar, 138 GiB per its site"),
        {1: (256, 8, 1), 8: (2_048, 1, 1), 64: (2_048, 1, 1)},
    ),
}


def table9_flops(labels: int) -> float:
    """Operations to train table 9's model on one image, by our count."""
    settings = {"backbone": "tresnet_m", "size": 224, "head": "ml-decoder", "freeze": "none", "precision": "16-mixed"}
    settings |= {"head.dim": 768, "head.groups": 100, "pair_mix": 0, "batch_size": 8}
    return lw.estimate(images=8, labels=labels, epochs=1, **settings).flops / 8


def published_share() -> float:
    """The share of the V100's peak that table 9 reaches."""
    peak = GPUS["v100"].half * 1e12
    return table9_flops(PUBLISHED["labels"]) * PUBLISHED["images_per_second"] / peak


def measured_here() -> dict[str, float]:
    """What this machine reaches in the same test (`python benchmarks/table9.py`)."""
    found = json.loads((ROOT / "benchmarks" / "results" / "table9.json").read_text("utf-8"))["rows"]
    row = next(row for row in found if row["head"] == "ml-decoder" and row["labels"] == 1000)
    rate = row["training_images_per_second"]
    return {"images_per_second": rate, "flops": rate * table9_flops(1000)}


def count(work: Work) -> dict[str, Any]:
    """What needs no machine: operations of an image, bytes on each GPU and in a checkpoint."""
    recipe = load_recipe(ROOT / work.recipe)
    found: dict[str, Any] = {
        "epochs": recipe.epochs,
        "averaged": bool(recipe.ema),
        "lr": recipe.optimizer.lr,
        "gib": {},
    }
    for gpus, (batch, _, _) in work.batches.items():
        cost = lw.estimate(
            recipe=ROOT / work.recipe, images=work.images, labels=work.labels, gpus=gpus, batch_size=batch
        )
        found["gib"][str(gpus)] = round(cost.total_memory / GIB, 1)
        found["flops_per_image"] = cost.flops / cost.steps / batch
    model = hollow_model(recipe, tuple(f"label {number}" for number in range(work.labels)))
    found["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    kept = cost.memory["weights"] + cost.memory["optimizer"] + cost.memory["averaged weights"]
    found["checkpoint_gb"] = round((kept + cost.memory["weights"]) / 1e9, 1)  # the last one, and the best weights
    return found


def loading(work: Work, seconds: float = 3.0) -> dict[str, float]:
    """How many photos a second one core of this machine reads, decodes and augments as the recipe says."""
    recipe, random = load_recipe(ROOT / work.recipe), np.random.default_rng(0)
    model = hollow_model(recipe, ("one", "two"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{number}.jpg") for number in range(16)]
        for path in paths:  # shapes and noise: about as hard to decode as a photo
            shapes = Image.fromarray(random.integers(0, 255, (12, 16, 3), np.uint8)).resize(
                work.photo, Image.Resampling.BICUBIC
            )
            noisy = np.asarray(shapes, np.int16) + random.normal(0, 8, (work.photo[1], work.photo[0], 1))
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)
        table = LabelTable.from_lists(paths, [["one"]] * 8 + [["two"]] * 8)
        transform = train_transform(model.config.preprocessing, recipe.augmentation)
        dataset = ImageDataset(table, transform, seed=0)
        done, start = 0, time.process_time()
        while time.process_time() - start < seconds:
            _ = dataset[done % len(paths)]
            done += 1
        rate = done / (time.process_time() - start)
        size = sum(Path(path).stat().st_size for path in paths) / len(paths)
    torch.set_num_threads(threads)
    return {"images_per_second": round(rate, 1), "photo_bytes": round(size)}


def rows(name: str, share: float, counted: dict[str, Any], per_core: float) -> list[dict[str, Any]]:
    """The plan of one training from what was counted and measured, and `ASSUMED`."""
    work, given = WORKS[name], {key: value for key, (value, _, _) in ASSUMED.items()}
    found = []
    for gpu in ("v100", "a100"):
        for gpus, (batch, accumulate, _) in work.batches.items():
            speed = GPUS[gpu].half * 1e12 * share  # FLOP/s of one GPU
            machines = math.ceil(gpus / given["gpus_per_machine"])
            compute = counted["flops_per_image"] * batch / gpus / speed  # seconds of a step
            gradients = counted["parameters"] * given["gradient_bytes"]
            inside = min(gpus, given["gpus_per_machine"])
            exchange = 2 * (inside - 1) / inside * gradients / (given["within_machine"] * 1e9)
            exchange += 2 * (machines - 1) / machines * gradients / (given["between_machines"] * 1e9 / 8)
            step = compute + exchange / accumulate
            loading = batch / (gpus * given["cores_per_gpu"] * per_core)
            steps = work.images // batch * counted["epochs"]
            # A forward pass is a third of a step; averaged weights are validated beside the raw ones.
            views = work.validation * counted["epochs"] * (2 if counted["averaged"] else 1)
            validation = views * counted["flops_per_image"] / 3 / gpus / speed
            slowest = max(step, loading)
            found.append(
                {
                    "gpu": gpu,
                    "gpus": gpus,
                    "batch": batch,
                    "accumulate": accumulate,
                    "hours": (steps * slowest + validation) / 3600,
                    "limit": "loading" if loading > step else "gradients" if step > 2 * compute else "computing",
                    "cores": math.ceil(batch / step / per_core),  # that never let a GPU wait
                    "images_per_second": batch / slowest,
                    "read_mb_per_second": batch / slowest * work.photo_bytes / 1e6,
                    "exchange_share": (exchange / accumulate) / step,
                    "gib": counted["gib"][str(gpus)],
                    "fits": counted["gib"][str(gpus)] + 1 <= GPUS[gpu].memory,
                }
            )
    return found


def command(name: str, gpus: int, lr: float) -> str:
    work = WORKS[name]
    batch, accumulate, factor = work.batches[gpus]
    machines = math.ceil(gpus / 8)
    start = ["labelwise"]
    if gpus > 1:
        start = ["torchrun", f"--nproc-per-node {gpus // machines}", "--max-restarts 3", "-m labelwise"]
    if machines > 1:
        start[1:1] = [f"--nnodes {machines}", "--rdzv-backend c10d", "--rdzv-endpoint first-machine:29500"]
    words = [*start, "train", f"--recipe {work.recipe}", f"--data {work.data}", f"--out /shared/runs/{name}"]
    if batch * accumulate != load_recipe(ROOT / work.recipe).batch_size or accumulate > 1:
        words.append(f"--batch-size {batch}")
    if accumulate > 1:
        words.append(f"--set accumulate={accumulate}")
    if factor != 1:
        words.append(f"--lr {lr * factor:.2g}")
    return " ".join(words)


def section(name: str, result: dict[str, Any]) -> str:
    if name == "assumptions":
        lines = ["| assumption | value | |", "|---|---|---|"]
        share = f"{100 * result['share_of_peak']:.0f} %"
        for key, (value, unit, why) in ASSUMED.items():
            shown = share if key == "share_of_peak" else f"{value} {unit}".strip()
            lines.append(f"| {key.replace('_', ' ')} | {shown} | {why} |")
        for key, work in WORKS.items():
            size, photos, source = work.archive
            what = f"{work.photo_bytes / 1e3:.0f} kB a photo: {size / 1e9:,.1f} GB for {photos:,} ({source})"
            lines.append(f"| {key} | {what} | {work.images:,} training and {work.validation:,} validation photos |")
        for key, found in result["loading"].items():
            width, height = WORKS[key].photo
            what = f"synthetic photos of {width} x {height} and {found['photo_bytes'] / 1e3:.0f} kB that one core "
            what += f"loads and augments, on {result['machine']}"
            lines.append(f"| {key}: loading | {found['images_per_second']:.0f} images/s | {what} |")
        return "\n".join(lines)
    work, counted = WORKS[name], result["counted"][name]
    shards, size = math.ceil(work.images / SHARD_IMAGES), work.images * work.photo_bytes
    disk = f"{size / 1e12:.1f} TB" if size >= 1e12 else f"{size / 1e9:.0f} GB"
    shard_size = SHARD_IMAGES * work.photo_bytes / 1e6
    days = work.images * counted["epochs"] * counted["flops_per_image"] / result["here"]["flops"] / 86400
    lines = [
        f"{counted['flops_per_image'] / 1e9:.0f} GFLOPs per training image, "
        f"{counted['parameters'] / 1e6:.0f} M parameters, {counted['epochs']} epochs; "
        f"{disk} of photos in {shards:,} shards of {shard_size:.0f} MB; "
        f"{counted['checkpoint_gb']} GB of checkpoints. {days:,.0f} days on this machine's two cores, "
        f"which train {result['here']['images_per_second']} images/s in table 9's setting.",
        "",
        "| GPUs | hours | limited by | images/s | cores needed | read | exchanging gradients | GiB on each | batch |",
        "|---|---:|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in result["rows"][name]:
        hours = f"{row['hours']:,.0f}" if row["hours"] >= 10 else f"{row['hours']:.1f}"
        gib = f"{row['gib']}" if row["fits"] else f"{row['gib']}: too much"
        batch = f"{row['batch']:,}" + (f" x {row['accumulate']}" if row["accumulate"] > 1 else "")
        cells = [f"{row['gpus']} x {GPUS[row['gpu']].name}", hours, row["limit"], f"{row['images_per_second']:,.0f}"]
        cells += [
            f"{row['cores']:,}",
            f"{row['read_mb_per_second']:,.0f} MB/s",
            f"{row['exchange_share']:.0%}",
            gib,
            batch,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    commands = [command(name, gpus, counted["lr"]) for gpus in work.batches]
    return "\n".join([*lines, "", "<!-- not run: needs GPUs and the data -->", "```sh", *commands, "```"])


def with_results(text: str, result: dict[str, Any]) -> str:
    """The page with the tables of the results."""
    return SECTION.sub(lambda match: f"{match['start']}\n{section(match['name'], result)}\n\n{match['end']}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="only write the page from the results")
    if not parser.parse_args().page:
        share = published_share()
        counted = {name: count(work) for name, work in WORKS.items()}
        loaded = {name: loading(work) for name, work in WORKS.items()}
        planned = {name: rows(name, share, counted[name], loaded[name]["images_per_second"]) for name in WORKS}
        content = {
            "machine": machine()["processor"],
            "share_of_peak": share,
            "here": measured_here(),
            "loading": loaded,
            "counted": counted,
            "rows": planned,
        }
        RESULTS.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    PAGE.write_text(with_results(PAGE.read_text("utf-8"), json.loads(RESULTS.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main()
