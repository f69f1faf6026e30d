"""Zero-shot: labels learned, others never seen. The heads of ML-Decoder's table 6, ML-Decoder with and without each
query augmentation, and HSQ on words, several seeds each, on frozen features of PASCAL VOC 2007 or of MS-COCO.

    python benchmarks/zero_shot.py voc --data voc:/data/VOCdevkit --out docs/results/zero-shot-voc.json
    python benchmarks/coco_table.py /data/coco80.csv --out coco14k.csv
    python benchmarks/zero_shot.py coco-65-15 --data 'csv:coco14k.csv?root=/data/coco&splits=train,val,more,test'
        --words coco_glove300.npy --out docs/results/zero-shot-coco-65-15.json

benchmarks/zero_shot.yaml holds the tasks with their labels, and the heads. A row that is in --out already is not run
again: stop and start as you like.

Settings are chosen without the unseen labels and without the test photos: other labels are taken for unseen, and
measured on val.

    python benchmarks/zero_shot.py voc --data … --out fold1.json --instead horse motorbike diningtable train
    python benchmarks/zero_shot.py voc --data … --out fold2.json --instead cow bicycle chair car
    python benchmarks/zero_shot.py voc --data … --out fold3.json --instead dog tvmonitor boat aeroplane
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from labelwise.data.manifests import write_manifest
from labelwise.data.sources import open_data
from labelwise.evaluation.zero_shot import evaluate_zero_shot
from labelwise.features import FeatureCache
from labelwise.model.model import LabelModel
from labelwise.training import Recipe, load_recipe
from labelwise.training.train import train

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes" / "zero-shot" / "voc.yaml"
PLAN = yaml.safe_load((ROOT / "benchmarks" / "zero_shot.yaml").read_text("utf-8"))
TASKS: dict[str, dict[str, Any]] = PLAN["tasks"]
VARIANTS: dict[str, dict[str, Any]] = PLAN["variants"]
METRICS = ("mAP", "OF1_top3", "OF1_top5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--words", nargs="+", help="sources of the labels' vectors; default: the task's")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--instead", nargs="+", help="labels to take for unseen, on val; the task's are left out")
    parser.add_argument("--epochs", type=int)
    arguments = parser.parse_args()
    task = TASKS[arguments.task]
    if arguments.instead and "choose" not in task:
        parser.error(f"--instead measures on photos that {arguments.task} trains on")
    with tempfile.TemporaryDirectory(prefix="zero-shot-") as folder:
        if "seen" in task:
            arguments.data = with_task_labels(arguments.data, task, Path(folder))
        run(arguments, task)


def with_task_labels(data: str, task: dict[str, Any], folder: Path) -> str:
    """The data with no other labels than the task's: a table of names may not hold any that a recipe leaves out."""
    file = folder / "photos.csv"
    write_manifest(open_data(data).with_labels([*task["seen"], *task["unseen"]]), file, columns=True)
    return f"csv:{file}?splits=train,val,more,test"


def run(arguments: argparse.Namespace, task: dict[str, Any]) -> None:
    result = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"rows": []}
    done = {(row["words"], row["variant"], row["seed"]) for row in result["rows"]}
    measure = Measure(arguments.data, task["choose"] if arguments.instead else "test")
    for seed in arguments.seeds:  # seed by seed: one of each is worth more than three of one
        for words in arguments.words or [task["words"]]:
            for variant in arguments.variants:
                recipe = recipe_of(variant, seed, words, arguments)
                assert recipe.model.words is not None
                source = Path(recipe.model.words.source).name
                if (source, variant, seed) in done:
                    continue
                row = {"words": source, "variant": variant, "seed": seed, **measure(recipe)}
                result["rows"].append(row)
                result |= {"unseen": recipe.data.unseen, "summary": summary(result["rows"])}
                write(arguments.out, result)
                print(source, variant, seed, f"ZSL mAP {row['zsl']['mAP']:.1f}", file=sys.stderr)
    print(markdown(result))


def markdown(result: dict[str, Any]) -> str:
    """The summary as a table for the page."""

    def cell(value: dict[str, float | None]) -> str:
        return f"{value['mean']:.1f}" + ("" if value["spread"] is None else f" ± {value['spread']:.1f}")

    columns = (("zsl", "mAP"), ("zsl_relative", "mAP"), ("zsl", "OF1_top3"), ("gzsl", "mAP"), ("gzsl", "OF1_top3"))
    chance = result["rows"][0]["chance"]
    guesses = [chance[part.partition("_")[0]][name] for part, name in columns]
    lines = ["| words | head | ZSL mAP | relative | ZSL F1 at 3 | GZSL mAP | GZSL F1 at 3 | seeds |", "|---" * 8 + "|"]
    lines.append(f"| | chance | {' | '.join(f'{value:.1f}' for value in guesses)} | |")
    for row in result["summary"]:
        cells = " | ".join(cell(row[part][name]) for part, name in columns)
        lines.append(f"| {row['words']} | {row['variant']} | {cells} | {row['seeds']} |")
    return "\n".join(lines)


def recipe_of(variant: str, seed: int, words: str, arguments: argparse.Namespace) -> Recipe:
    """The recipe of VOC, changed by the task, then by the variant; `$name` in a variant is the task's."""
    task = TASKS[arguments.task]
    changes = {"data.source": arguments.data, "seed": seed, "thresholds": "none", "workers": 0}
    changes |= task.get("change", {})
    for key, value in VARIANTS[variant].items():
        changes[key] = task[value[1:]] if str(value).startswith("$") else value
    if words != task["words"] or "unseen" in task:  # the recipe's own come with phrases for VOC's names
        changes["model.words"] = words
    if "unseen" in task:
        changes["data.unseen"] = task["unseen"]
    if arguments.epochs is not None:
        changes["epochs"] = arguments.epochs
    if arguments.instead:
        data = load_recipe(RECIPE, changes).data
        labels = data.labels or open_data(arguments.data).labels
        changes["data.labels"] = [label for label in labels if label not in (data.unseen or ())]
        changes["data.unseen"] = arguments.instead
    return load_recipe(RECIPE, changes)


class Measure:
    """Trains by a recipe in a folder that is thrown away, and measures on the test images."""

    def __init__(self, data: str, split: str) -> None:
        self.table = open_data(data).select(split)
        self.features: FeatureCache | None = None  # the same for all: the backbone is frozen

    def __call__(self, recipe: Recipe) -> dict[str, Any]:
        started = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="zero-shot-"))
        try:
            model = train(recipe, folder, overwrite=True).model()
            history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        finally:
            shutil.rmtree(folder)
        trained = time.monotonic() - started
        assert isinstance(recipe.data.unseen, tuple)
        result = evaluate_zero_shot(
            model,
            self.table,
            recipe.data.unseen,
            ignore_extra_labels=True,
            progress=False,
            features=self._features_of(model),
        ).to_dict()
        return {
            "zsl": {name: result["zsl"][name] for name in METRICS},
            "zsl_relative": {"mAP": result["zsl_relative"]["mAP"]},
            "gzsl": {name: result["gzsl"][name] for name in METRICS},
            "chance": {part: {name: result[part]["chance"][name] for name in METRICS} for part in ("zsl", "gzsl")},
            "seen_validation_mAP": max((row["mAP"] for row in history if "mAP" in row), default=None),
            "AP": {row["label"]: row["AP"] for row in result["per_label"]},
            "seconds": round(trained, 1),
        }

    def _features_of(self, model: LabelModel) -> FeatureCache:
        if self.features is None:
            self.features = FeatureCache.build(
                self.table, model.backbone, model.config.preprocessing, flips=False, workers=0, engine="auto"
            )
        return self.features


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread (the standard deviation over seeds) of each variant."""
    keys = dict.fromkeys((row["words"], row["variant"]) for row in rows)
    return [
        {
            "words": words,
            "variant": variant,
            "seeds": len(same),
            **{
                part: {
                    name: {
                        "mean": statistics.mean(values),
                        "spread": statistics.stdev(values) if len(same) > 1 else None,
                    }
                    for name in same[0][part]
                    for values in [[row[part][name] for row in same]]
                }
                for part in ("zsl", "zsl_relative", "gzsl")
            },
        }
        for words, variant in keys
        for same in [[row for row in rows if (row["words"], row["variant"]) == (words, variant)]]
    ]


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(result, indent=1) + "\n")
    draft.replace(path)


if __name__ == "__main__":
    main()
