"""Losses on images of which few labels are known: one positive per image, or 10, 50 and 90 % of all labels.

    python benchmarks/partial_labels.py --data voc:VOC2007 --train trainval --settings voc \\
        --json docs/results/partial-labels-voc.json
    python benchmarks/partial_labels.py --data coco.csv --settings coco --seeds 0 \\
        --json docs/results/partial-labels-coco.json

Labels are hidden as `labelwise data hide` does it. Then each loss trains a head on the features of a frozen backbone,
all with the same settings; the table is the mAP on the test images after the last epoch. EM, ROLE and GPR get what
their authors set for the dataset. Finished trainings are in the JSON file and are not done again. `--keep 1` hides
nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise import heads
from labelwise.data import LabelTable, open_data
from labelwise.data.hiding import hide
from labelwise.features import FeatureCache
from labelwise.metrics import multilabel_scores
from labelwise.training import load_recipe
from labelwise.training.batches import FeatureBatches, Share
from labelwise.training.display import Display
from labelwise.training.distributed import create_fabric
from labelwise.training.loop import Trainer
from labelwise.training.recipe import Recipe
from labelwise.training.setup import build_model

KEEPS = ("one-positive", "0.1", "0.5", "0.9")
ABSENT = {"unknown": "negative"}

# What the authors set for each dataset.
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "voc": {
        "em": {"alpha": 0.2, "beta": 0.02},
        "role": {"expected_positives": 1.5},
        "gpr": {"expected_positives": 1.5, "regularisation": 0.05},
    },
    "coco": {
        "em": {"alpha": 0.1, "beta": 0.9},
        "role": {"expected_positives": 2.9},
        "gpr": {"expected_positives": 2.9, "k_last": (10.0, -8.0)},
    },
}

HEADS: dict[str, dict[str, Any]] = {
    "gap": {"model.head": "gap", "epochs": 10, "batch_size": 64, "optimizer.lr": 1e-3},
    "hsq": {
        **{"model.head": "hsq", "model.options.dim": 256, "model.options.token_dropout": 0.5},
        **{"epochs": 10, "batch_size": 32, "optimizer.lr": 3e-4},
    },
}


def losses_of(settings: str, labels: int, epochs: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """The rows of the table: name and options of a loss."""
    own = SETTINGS[settings]
    pseudo = {"warmup_epochs": epochs // 2}  # the authors' 5 of 10
    return {
        "bce, unknown ignored": ("bce", {}),
        "bce, unknown absent": ("bce", ABSENT),
        "bce, unknown weakly absent": ("bce", {**ABSENT, "unknown_weight": 1 / (labels - 1)}),
        "asymmetric, unknown absent": ("asymmetric", ABSENT),
        "hill, unknown absent": ("hill", ABSENT),
        "splc, unknown absent": ("splc", ABSENT),
        "csl": ("csl", {}),
        "em": ("em", {**own["em"], "negative_share": 0.0}),
        "em with pseudo-labels": ("em", own["em"] | pseudo),
        "role": ("role", own["role"]),
        "gpr": ("gpr", own["gpr"]),
    }


class Pooled:
    """A feature cache with each map averaged to a point [C, 1, 1]: all that the head `gap` sees, 49 times smaller."""

    def __init__(self, cache: FeatureCache) -> None:
        self.rows, self.bad_images = cache.rows, cache.bad_images
        self.points = torch.zeros(int(cache.rows.max()) + 1, cache.shape[0], 1, 1)
        for rows in np.array_split(cache.rows, max(1, len(cache.rows) // 256)):
            self.points[rows] = cache.batch(rows).mean(dim=(2, 3), keepdim=True)

    def batch(self, rows: np.ndarray, flip: object = False) -> Tensor:
        return self.points[rows]


@dataclass
class Study:
    """One dataset with one head; `rows` are the finished trainings."""

    base: Recipe
    train: LabelTable
    test: LabelTable
    file: Path
    about: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fabric = create_fabric(self.base)
        self.model = build_model(self.base, self.train.labels)
        self.features = {"train": self._features(self.train), "test": self._features(self.test)}
        if self.file.exists():
            self.rows = json.loads(self.file.read_text(encoding="utf-8"))["rows"]

    def _features(self, table: LabelTable) -> Any:
        cache = FeatureCache.build(
            table, self.model.backbone, self.model.config.preprocessing, flips=False, engine="auto", progress=False
        )
        return Pooled(cache) if self.base.model.head == "gap" else cache

    def measured(self, name: str, loss: tuple[str, dict[str, Any]], keep: str, seed: int) -> dict[str, Any]:
        """One entry of the table."""
        key = {"loss": name, "keep": keep, "seed": seed}
        for row in self.rows:
            if row.items() >= key.items():
                return row
        head = self._trained(hide(self.train, keep, seed=seed, split="all"), *loss, seed).eval()
        features = self.features["test"]
        with torch.no_grad():
            parts = np.array_split(features.rows, max(1, len(features.rows) // 256))
            logits = torch.cat([head(features.batch(part)) for part in parts])
        scores = multilabel_scores(logits.numpy(), self.test.targets(features.rows), thresholds=0.0)
        self.rows.append({**key, "mAP": round(scores.to_dict()["mAP"], 2)})
        lines = ",\n  ".join(json.dumps(row) for row in self.rows)
        self.file.write_text(f'{{\n "about": {json.dumps(self.about)},\n "rows": [\n  {lines}\n ]\n}}\n')
        return self.rows[-1]

    def _trained(self, hidden: LabelTable, loss: str, options: dict[str, Any], seed: int) -> heads.Head:
        of_loss = self.base.loss.model_copy(update={"name": loss, "options": options})
        recipe = self.base.model_copy(update={"loss": of_loss, "seed": seed})
        labels = len(hidden.labels)
        torch.manual_seed(seed)
        head = heads.create(
            recipe.model.head, in_features=self.model.head.in_features, labels=labels, **recipe.model.options
        )
        batches = FeatureBatches(self.features["train"], None, (hidden, None), recipe.batch_size, seed, Share(), flip=0)
        with tempfile.TemporaryDirectory() as folder:
            Trainer(head, batches, labels, recipe, Path(folder), self.fabric, Display(None), data="").run(resume=False)
        return head


def table_of(rows: list[dict[str, Any]]) -> str:
    """The mean over the seeds as a Markdown table, with the standard deviation where there are several."""
    keeps = [keep for keep in (*KEEPS, "1") if any(row["keep"] == keep for row in rows)]
    lines = [f"| loss | {' | '.join(keeps)} |", "|---|" + "---:|" * len(keeps)]
    for name in dict.fromkeys(row["loss"] for row in rows):
        cells = []
        for keep in keeps:
            scores = [row["mAP"] for row in rows if row["loss"] == name and row["keep"] == keep]
            spread = f" ± {np.std(scores, ddof=1):.1f}" if len(scores) > 1 else ""
            cells.append(f"{np.mean(scores):.1f}{spread}" if scores else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--train", default="train", help="the split to train on")
    parser.add_argument("--settings", choices=SETTINGS, required=True, help="whose settings of em, role and gpr")
    parser.add_argument("--backbone", default="tf_efficientnet_lite2")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--head", choices=HEADS, default="gap")
    parser.add_argument("--epochs", type=int, help="instead of the head's own")
    parser.add_argument("--losses", nargs="+", help="only these rows")
    parser.add_argument("--keep", nargs="+", default=list(KEEPS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    changes = HEADS[arguments.head] | ({"epochs": arguments.epochs} if arguments.epochs else {})
    base = load_recipe(
        None,
        {
            **{"data.source": arguments.data, "data.validation": None, "thresholds": "none", "pair_mix": 0.0},
            **{"model.backbone": arguments.backbone, "model.weights": arguments.weights, "model.size": arguments.size},
            **{"model.options": {}, "precision": "32-true", "min_steps": 0, "workers": 0},
            **changes,
        },
    )
    source = open_data(arguments.data)
    train, test = source.select(arguments.train), source.select("test")
    about = {
        **{"head": arguments.head, "backbone": arguments.backbone, "size": arguments.size, "epochs": base.epochs},
        **{"train_images": len(train), "test_images": len(test), "labels": len(train.labels)},
    }
    study = Study(base, train, test, arguments.json, about)
    losses = losses_of(arguments.settings, len(train.labels), base.epochs)
    for seed in arguments.seeds:
        for keep in arguments.keep:
            for name in arguments.losses or losses:
                row = study.measured(name, losses[name], keep, seed)
                print(json.dumps(row), flush=True)
    print(table_of(study.rows))


if __name__ == "__main__":
    main()
