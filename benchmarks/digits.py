"""Single label on real images: ML-Decoder in the place of global average pooling, softmax and sigmoid.

    python benchmarks/digits.py --data digits --json docs/results/digits.json

scikit-learn's 1,797 handwritten digits become a folder of images, one folder for each digit. The writers of the test
images wrote none of the others: the splits follow the order of the file, in which each writer's digits lie together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

from labelwise.data import open_data
from labelwise.evaluation import evaluate
from labelwise.training import load_recipe
from labelwise.training.train import train

RECIPE = Path(__file__).with_name("digits.yaml")
SPLITS = {"train": (0.0, 0.6), "val": (0.6, 0.8), "test": (0.8, 1.0)}  # shares of the file
LOSSES = {
    "softmax": {"loss.name": "softmax-cross-entropy", "loss.options": {"label_smoothing": 0.1}},
    "sigmoid": {"loss.name": "bce", "loss.options": {"label_smoothing": 0.1}},
}


def write_digits(folder: Path) -> None:
    """folder/train/7/0012.png and so on, 8 x 8 pixels, dark on white."""
    digits = load_digits()
    for split, (start, end) in SPLITS.items():
        for row in range(round(start * len(digits.images)), round(end * len(digits.images))):
            path = folder / split / str(digits.target[row]) / f"{row:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((255 - 15.9375 * digits.images[row]).astype(np.uint8)).save(path)


def measure(data: Path, head: str, loss: str, seed: int, **changes: Any) -> dict[str, Any]:
    wanted = {"data.source": f"imagefolder:{data}", "model.head": head, "seed": seed, **LOSSES[loss], **changes}
    with tempfile.TemporaryDirectory() as folder:
        model = train(load_recipe(RECIPE, wanted), folder).model()
    scores = evaluate(model, open_data(f"imagefolder:{data}").select("test"), bootstrap=0, workers=0).to_dict()
    return {
        "head": head,
        "loss": loss,
        "seed": seed,
        "top1": scores["accuracy_top1"],
        "top5": scores["accuracy_top5"],
        "ece": scores["ece"]["after"],
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder for the images")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not options.data.exists():
        write_digits(options.data)
    runs = [
        measure(options.data, head, loss, seed, epochs=options.epochs)
        for seed in range(options.seeds)
        for loss in LOSSES
        for head in ("gap", "ml-decoder")
    ]
    table = Table("loss", "head", "top-1", "of each seed", "top-5", "parameters")
    for loss in LOSSES:
        for head in ("gap", "ml-decoder"):
            mine = [run for run in runs if (run["loss"], run["head"]) == (loss, head)]
            top1, top5 = ([run[key] for run in mine] for key in ("top1", "top5"))
            each = ", ".join(f"{value:.2f}" for value in top1)
            mean = f"{statistics.mean(top1):.2f}"
            table.add_row(loss, head, mean, each, f"{statistics.mean(top5):.2f}", f"{mine[0]['parameters']:,}")
    Console().print(table)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        versions = {"torch": torch.__version__}
        options.json.write_text(json.dumps({"epochs": options.epochs, "versions": versions, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
