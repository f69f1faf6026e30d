"""Do heads on frozen features want more variety than mirrored photos? Random crops of each training photo, as files.

    python benchmarks/cropped_photos.py --data voc:/data/VOCdevkit --out study/crops --json docs/results/voc-crops.json

Each photo of train gets three crops of half its area or more; a crop keeps the photo's labels. Trials have the settings
of their row in benchmarks/study_voc.yaml, and as many steps or twice as many; val stays as it is. Finished trials are
kept.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torchvision.transforms import RandomResizedCrop

from labelwise.data.images import load_image
from labelwise.data.manifests import write_manifest
from labelwise.data.sources import open_data
from labelwise.data.table import LabelTable
from labelwise.sweeps.execute import Outcome, run_one, status_of
from labelwise.sweeps.plan import PlannedRun
from labelwise.training import load_recipe
from labelwise.training.run import read_history
from study import read_study

CROPS = 3
TRIALS = (("gap", 1), ("hsq", 1), ("hsq", 2))  # a row, and how many times its steps


def write_crops(data: str, folder: Path) -> Path:
    """photos.csv: the photos of train, each followed by its crops, and those of val."""
    torch.manual_seed(0)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    table = open_data(data)
    images: list[str] = []
    rows: list[int] = []
    for row in np.concatenate([table.rows("train"), table.rows("val")]).tolist():
        images.append(table.images[row])
        rows.append(row)
        if table.splits[row] == "val":
            continue
        photo = load_image(table.images[row])
        for number in range(CROPS):
            top, left, height, width = RandomResizedCrop.get_params(photo, [0.5, 1.0], [3 / 4, 4 / 3])
            crop = folder / "images" / f"{Path(table.images[row]).stem}_{number}.jpg"
            photo.crop((left, top, left + width, top + height)).save(crop, quality=95)
            images.append(str(crop))
            rows.append(row)
    splits = [table.splits[row] for row in rows]
    cropped = LabelTable.from_dense(images, table.targets(rows), table.labels, splits=splits)
    write_manifest(cropped, folder / "photos.csv", columns=True)
    return folder / "photos.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the crops and the runs")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()

    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    manifest = arguments.out / "photos.csv"
    source = {"data.source": str(manifest if manifest.exists() else write_crops(arguments.data, arguments.out))}
    study = read_study("voc")
    found = []
    for row, times in TRIALS:
        settings = study["always"] | study["rows"][row]["set"]
        settings["epochs"] = settings["epochs"] * times // (1 + CROPS)
        recipe = load_recipe(None, source | study["stages"]["tune"] | settings | {"thresholds": "none"})
        name = f"{row}-{times}x"
        planned = PlannedRun(name, {"trial": name}, recipe)
        outcome = run_one(Outcome(planned, status_of(arguments.out / name, planned)), arguments.out, None)
        if outcome.status != "finished":
            raise SystemExit(f"{name}: {outcome.reason}")
        history = read_history(arguments.out / name)
        found.append({"row": row, "steps": times, "val_mAP": [round(epoch["mAP"], 2) for epoch in history]})
        print(f"{name}: {found[-1]['val_mAP'][-1]}", flush=True)
        arguments.json.write_text(json.dumps({"runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
