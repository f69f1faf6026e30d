"""Peak memory of training, evaluating and predicting with 10,000 labels: the real commands, each in its own process.

    python benchmarks/many_labels.py --json docs/results/many-labels.json

The images are noise and the labels are dealt to them at random (some often, most rarely, as in real sets): there is
nothing to learn, but everything to hold in memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

HEADS = {
    "gap": [],
    "ml-decoder": ["head.dim=768", "head.groups=100"],
    "grouped-hsq": ["head.dim=768", "head.groups=100"],
}
_MEASURED = """
import sys
from labelwise.engines.measure import memory_peak
from labelwise.cli import main
try:
    main(sys.argv[1:])
except SystemExit as done:
    if done.code:
        raise
sys.stdout.write(f"\\n{memory_peak()}")
"""


def write_data(folder: Path, images: int, labels: int) -> Path:
    """A manifest with 10 labels for each image; every label occurs."""
    rng = np.random.default_rng(0)
    chance = 1 / np.arange(1, labels + 1)
    lines = ["image,labels,split"]
    for number in range(images):
        pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        some = rng.choice(labels, 10, replace=False, p=chance / chance.sum())
        every = range(number, labels, images)  # so that the file names all labels
        names = "|".join(f"label {label}" for label in sorted({*some.tolist(), *every}))
        lines.append(f"{number}.png,{names},{('train', 'train', 'val', 'test')[number % 4]}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder / "labels.csv"


def peak(*arguments: str) -> float:
    """The most memory that a command of labelwise held, in MB."""
    command = [sys.executable, "-c", _MEASURED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return int(done.stdout.splitlines()[-1]) / 1e6


def measure(name: str, data: Path, folder: Path) -> dict[str, Any]:
    head = "hsq" if name == "grouped-hsq" else name
    changes = ["model.backbone=test_resnet", "model.weights=none", "model.size=32", "model.stage=-2", "workers=0"]
    changes += ["model.freeze=none", "pair_mix=0", "epochs=1", "thresholds=none", *HEADS[name]]
    options = [part for change in changes for part in ("--set", change)]
    out = str(folder / name)
    return {
        "head": name,
        "train": peak("train", "--data", str(data), "--out", out, "--head", head, *options),
        "evaluate": peak("evaluate", out, "--data", str(data), "--split", "test", "--bootstrap", "0", "--workers", "0"),
        "predict": peak("predict", out, str(data.parent / "0.png")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--labels", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        data = write_data(Path(place), options.images, options.labels)
        rows = [measure(name, data, Path(place)) for name in HEADS]
    table = Table("head", title=f"peak memory, MB: {options.images:,} images, {options.labels:,} labels")
    for command in ("train", "evaluate", "predict"):
        table.add_column(command, justify="right")
    for row in rows:
        table.add_row(row["head"], *(f"{row[key]:,.0f}" for key in ("train", "evaluate", "predict")))
    Console().print(table)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        report = {"images": options.images, "labels": options.labels, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
