"""Does it matter which labels share a query? ML-Decoder with 5 queries for the 20 labels of PASCAL VOC 2007.

    python benchmarks/grouping.py --data voc:/data/VOCdevkit/VOC2007 --words glove.npy --json docs/results/grouping.json

Labels are dealt into groups at random (another deal for each seed), by their word vectors, and by how often they occur
in the same training photo; a query for each label stands beside them. The backbone is frozen and its features are
cached, so that a run takes a minute.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from labelwise.data import open_data
from labelwise.engines.measure import machine
from labelwise.evaluation import evaluate
from labelwise.features import FeatureCache
from labelwise.model.model import LabelModel
from labelwise.training import load_recipe
from labelwise.training.train import train

GROUPS = 5
CONTESTANTS = ("random", "words", "co-occurrence", "no groups")


def settings(data: str, words: str, kind: str, seed: int, epochs: int) -> dict[str, Any]:
    grouped = kind != "no groups"
    groups = {"groups": GROUPS if grouped else 100, "group_seed": seed}
    return {
        "data.source": data,
        "model.head": "ml-decoder",
        "model.options": {"dim": 256, "feedforward": 512, "token_dropout": 0.5, **groups},
        "model.words": {"source": words},
        "model.grouping": kind if grouped else "random",
        "epochs": epochs,
        "seed": seed,
        "thresholds": "none",
    }


def groups_of(model: LabelModel) -> list[list[str]]:
    query = model.head.label_query.tolist()
    return [[name for name, k in zip(model.labels, query, strict=True) if k == group] for group in sorted(set(query))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--words", required=True, help="word vectors of the labels, as for model.words.source")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    test = open_data(options.data).select("test")
    runs: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for kind in CONTESTANTS:
            changes = settings(options.data, options.words, kind, seed, options.epochs)
            with tempfile.TemporaryDirectory() as folder:
                model = train(load_recipe(None, changes), folder).model()
            features = FeatureCache.build(test, model.backbone, model.config.preprocessing, flips=False)
            scores = evaluate(model, test, features=features, bootstrap=0)
            run = {"grouping": kind, "seed": seed, "mAP": 100 * scores.scores.mAP}
            runs.append(run | ({} if kind == "no groups" else {"groups": groups_of(model)}))
    table = Table("grouping", "mAP", "spread", "of each seed", title=f"{GROUPS} queries, {options.epochs} epochs")
    for kind in CONTESTANTS:
        values = [run["mAP"] for run in runs if run["grouping"] == kind]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        table.add_row(kind, f"{statistics.mean(values):.2f}", f"{spread:.2f}", ", ".join(f"{v:.2f}" for v in values))
    Console().print(table)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        report = {"queries": GROUPS, "epochs": options.epochs, "machine": machine(), "runs": runs}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
