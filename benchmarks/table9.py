"""ML-Decoder's table 9 on the device that is there: images per second, maximal batch and FLOPs of whole models.

    python benchmarks/table9.py --device cuda --json table9.json
    python benchmarks/table9.py --device cpu --labels 100 1000 --batch 4 --json benchmarks/results/table9.json

TResNet-M at 224 pixels under three heads. The maximal batch is counted, not tried: what fits into `--memory` (the
paper's V100 has 16 GB) by `lw.estimate`. On a GPU the speed is measured at 80 % of it in mixed precision, as in the
paper; on a CPU at `--batch` images in float32. Compare the speeds of one run with each other.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import labelwise as lw
from labelwise.model.complexity import measure_complexity
from labelwise.training.estimate import CUDA_ITSELF, GIB, estimate
from labelwise.training.recipe import load_recipe

HEADS: dict[str, dict[str, Any]] = {
    "gap": {},
    "transformer-decoder": {"dim": 768},
    "ml-decoder": {"dim": 768, "groups": 100},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backbone", default="tresnet_m")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--batch", type=int, help="images in a step; default: 80 %% of the maximal batch, 4 on a CPU")
    parser.add_argument("--memory", type=float, default=16, help="GiB for the maximal batch")
    parser.add_argument("--seconds", type=float, default=5, help="how long each speed is measured")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for head, options in HEADS.items():
        for labels in arguments.labels:
            rows.append(row := measure(head, options, labels, arguments))
            print(row, flush=True)
    if arguments.json is not None:
        about = {name: getattr(arguments, name) for name in ("device", "backbone", "size", "memory")}
        arguments.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def measure(head: str, options: dict[str, Any], labels: int, arguments: argparse.Namespace) -> dict[str, Any]:
    kind = torch.device(arguments.device).type  # "cuda" of "cuda:1"
    on_cpu = kind == "cpu"
    most = maximal_batch(head, options, labels, arguments)
    batch = arguments.batch or (4 if on_cpu else max(1, int(0.8 * most)))
    model = lw.create_model(arguments.backbone, head, labels, weights="none", size=arguments.size, **options)
    macs = measure_complexity(model).total("macs")
    model = model.to(arguments.device)
    images = torch.rand(batch, 3, arguments.size, arguments.size, device=arguments.device)
    targets = torch.zeros(batch, labels, device=arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler(kind, enabled=not on_cpu)

    def forward() -> torch.Tensor:
        with torch.autocast(kind, dtype=torch.float16, enabled=not on_cpu):
            logits: torch.Tensor = model(images)
        return logits.float()

    def train() -> None:
        optimizer.zero_grad()
        scaler.scale(lw.losses.asymmetric(forward(), targets)).backward()
        scaler.step(optimizer)
        scaler.update()

    @torch.no_grad()
    def infer() -> None:
        forward()

    speeds = {}
    for name, step in (("training", train), ("inference", infer)):
        model.train(name == "training")
        speeds[f"{name}_images_per_second"] = round(batch * steps_per_second(step, arguments), 2)
    return {"head": head, "labels": labels, **speeds, "batch": batch, "maximal_batch": most, "gflops": macs / 1e9}


def maximal_batch(head: str, options: dict[str, Any], labels: int, arguments: argparse.Namespace) -> int:
    """How many images of a training step in mixed precision fit into the memory."""
    changes = {
        "model.backbone": arguments.backbone,
        "model.size": arguments.size,
        "model.head": head,
        "model.options": options,
        "model.freeze": "none",
        "pair_mix": 0.0,
        "precision": "16-mixed",
        "batch_size": 8,
    }
    memory = estimate(load_recipe(None, changes), images=8, labels=labels).memory
    activations = memory.pop("activations") / 8  # of one image
    return max(0, int((arguments.memory * GIB - CUDA_ITSELF - sum(memory.values())) / activations))


def steps_per_second(step: Any, arguments: argparse.Namespace) -> float:
    def wait() -> None:
        if arguments.device.startswith("cuda"):
            torch.cuda.synchronize(arguments.device)

    step()
    wait()
    started, steps = time.monotonic(), 0
    while steps == 0 or time.monotonic() - started < arguments.seconds:
        step()
        wait()
        steps += 1
    return steps / (time.monotonic() - started)


if __name__ == "__main__":
    main()
