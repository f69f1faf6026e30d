"""The Open Images recipe from files in the real format to the evaluation: what nobody looked at is unknown."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from labelwise.cli import main
from labelwise.data import open_data
from labelwise.data.sample import make_sample
from labelwise.evaluation import predict_logits
from labelwise.model.model import load_model

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ("sun", "moon", "tree", "house", "fish")  # of the sample set; and one that no photo of it shows
NEVER = "/m/0never"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """60 sample pictures as Open Images: for each photo people confirmed what is there and refused one other label."""
    make_sample(tmp_path / "sample", images=60, size=32)
    root = tmp_path / "openimages"
    ids = {name: f"/m/0{place}" for place, name in enumerate(CLASSES)}
    rows: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    with (tmp_path / "sample" / "labels.csv").open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            split = ("train", "train", "validation", "test")[number % 4]
            (root / split).mkdir(parents=True, exist_ok=True)
            image = f"{number + 1:016x}"
            (tmp_path / "sample" / row["image"]).rename(root / split / f"{image}.jpg")
            there = set(row["labels"].split("|")) & set(CLASSES)
            refused = next(name for name in CLASSES[number % 5 :] + CLASSES if name not in there)
            rows[split] += [f"{image},verification,{ids[name]},1" for name in sorted(there)]
            rows[split] += [f"{image},verification,{ids[refused]},0", f"{image},verification,{NEVER},0"]
    for split, lines in rows.items():
        prefix = "oidv6-train" if split == "train" else split
        text = "\n".join(["ImageID,Source,LabelName,Confidence", *lines]) + "\n"
        (root / f"{prefix}-annotations-human-imagelabels.csv").write_text(text)
    described = [f"{id},{name}" for name, id in ids.items()] + [f"{NEVER},unicorn"]
    (root / "oidv6-class-descriptions.csv").write_text("\n".join(["LabelName,DisplayName", *described]) + "\n")
    return root


def test_recipe_trains_and_is_measured_over_labels_with_ground_truth(folder: Path, tmp_path: Path) -> None:
    recipe = ROOT / "recipes" / "ml-decoder" / "open-images-k100.yaml"
    small = ["model.backbone=test_resnet", "model.weights=none", "model.size=32", "precision=32-true", "workers=0"]
    small += ["head.dim=16", "head.groups=3", "epochs=2", "batch_size=8"]
    run, data = tmp_path / "run", f"openimages:{folder}"
    options = [part for setting in small for part in ("--set", setting)]
    report = tmp_path / "scores.json"
    for arguments in (
        ["train", "--recipe", str(recipe), "--data", data, "--out", str(run), *options],
        ["evaluate", str(run), "--data", data, "--split", "test", "--bootstrap", "0", "--json", str(report)],
    ):
        with pytest.raises(SystemExit) as done:
            main(arguments)
        assert done.value.code == 0
    scores = json.loads(report.read_text())

    model, table = load_model(run), open_data(data).select("test")
    logits = predict_logits(model, table, progress=False, workers=0).logits
    targets = table.targets()
    measured = {}
    for column, name in enumerate(table.labels):
        known = targets[:, column] >= 0
        if (targets[known, column] == 1).any():
            measured[name] = 100 * average_precision_score(targets[known, column], logits[known, column])
    assert "unicorn" not in measured
    assert scores["labels_without_positives"] == len(table.labels) - len(measured)
    assert scores["mAP"] == pytest.approx(np.mean(list(measured.values())))
    assert {row["label"] for row in scores["per_label"] if row["AP"] is None} == set(table.labels) - set(measured)
    assert scores["unknown_entries"] == int((targets < 0).sum()) > 0
