"""Ways to choose thresholds, on models trained with 100 to 10,000 photos: which of them hold on other photos?

    python benchmarks/thresholds.py --data voc:VOC2007 --train trainval --json docs/results/thresholds-voc.json
    python benchmarks/thresholds.py --data coco80.csv --json docs/results/thresholds-coco.json

For each size and seed: draw training photos, hold a fifth of them out, train with the defaults, fit temperature, offset
and thresholds on the fifth in every way, and measure CF1 and OF1 on the test photos. As always, the model goes on to
learn from the fifth after the thresholds are fitted. Ways: `auto`, our default; `f1`,
the best F1 of each label on the fifth; `shared`, one threshold with the best overall F1 there; 0.5; and the k best
labels of each photo. The logits of finished trainings stay in the folder `--logits`, which makes this resumable.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import labelwise as lw
from labelwise.data import LabelTable, open_data
from labelwise.data.manifests import write_manifest
from labelwise.data.splitting import split
from labelwise.evaluation.calibration import fit_platt
from labelwise.evaluation.inference import predict_logits
from labelwise.evaluation.thresholds import fit_thresholds
from labelwise.features import FeatureCache
from labelwise.metrics import multilabel_scores

TOP = (1, 2, 3, 4)


def drawn(table: LabelTable, train: np.ndarray, test: np.ndarray, size: int, seed: int) -> LabelTable:
    """`size` training images, a fifth of them held out, and the test images."""
    rows = train[np.sort(np.random.default_rng(seed).permutation(len(train))[:size])]
    parts = split(table.select(rows).with_splits([""] * size), {"train": 0.8, "val": 0.2}, seed=seed)
    return table.select(np.concatenate([rows, test])).with_splits([*parts.splits, *["test"] * len(test)])


def trained(parts: LabelTable, seed: int) -> dict[str, np.ndarray]:
    """Logits and targets of the images that were held out, from before the model learned from them, and of the test
    images."""
    with tempfile.TemporaryDirectory() as folder:
        photos = f"{folder}/photos.csv"
        write_manifest(parts, Path(photos))
        run = lw.train(photos, out=f"{folder}/run", seed=seed, head="hsq", **{"data.labels": list(parts.labels)})
        held_out = run.held_out(parts.select("val"))
        assert held_out is not None
        model, test = run.model(), parts.select("test")
        features = FeatureCache.build(test, model.backbone, model.config.preprocessing, flips=False, engine="auto")
        logits = predict_logits(model, test, features=features)
        return {
            "held_out_logits": held_out[0],
            "held_out_targets": held_out[1],
            "test_logits": logits.logits,
            "test_targets": test.targets(logits.rows),
        }


def measured(found: Mapping[str, np.ndarray], size: int, seed: int) -> dict[str, object]:
    fit_targets, targets = found["held_out_targets"], found["test_targets"]
    temperature, offset = fit_platt(found["held_out_logits"], fit_targets)
    fit_scores, scores = (
        1 / (1 + np.exp((offset - found[name].astype(np.float64)) / temperature))
        for name in ("held_out_logits", "test_logits")
    )
    thresholds = {
        "auto": fit_thresholds(fit_scores, fit_targets, "auto"),
        "f1": fit_thresholds(fit_scores, fit_targets, "f1"),
        "shared": fit_thresholds(fit_scores.reshape(-1, 1), fit_targets.reshape(-1, 1), "f1")[0],
        "0.5": 0.5,
    }
    ways = {}
    for way, values in thresholds.items():
        result = multilabel_scores(scores, targets, thresholds=values).to_dict()
        ways[way] = {name: round(result[name], 2) for name in ("CF1", "OF1")}
    for k in TOP:
        result = multilabel_scores(scores, targets, top_k=k).to_dict()
        ways[f"top {k}"] = {name: round(result[f"{name}_top{k}"], 2) for name in ("CF1", "OF1")}
    return {"images": size, "seed": seed, "mAP": round(result["mAP"], 2), "ways": ways}


def summary(rows: list[dict]) -> list[dict]:
    """For each size, means over the seeds, and how far `auto` is from the best other way, chosen with hindsight."""
    table = []
    for size in sorted({row["images"] for row in rows}):
        same = [row["ways"] for row in rows if row["images"] == size]
        means = {
            way: {name: float(np.mean([ways[way][name] for ways in same])) for name in ("CF1", "OF1")}
            for way in same[0]
        }
        best = {name: max(values[name] for way, values in means.items() if way != "auto") for name in ("CF1", "OF1")}
        behind = {name: round(means["auto"][name] - best[name], 2) for name in best}
        rounded = {way: {name: round(value, 1) for name, value in values.items()} for way, values in means.items()}
        table.append({"images": size, "seeds": len(same), "auto_minus_best": behind, "means": rounded})
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--train", default="train", help="the split to draw from")
    parser.add_argument("--test-images", type=int, default=4000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000, 3000, 10000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--logits", type=Path, default=Path("threshold-logits"))
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    table = open_data(arguments.data)
    train, test = table.rows(arguments.train), table.rows("test")
    if len(test) > arguments.test_images:
        test = test[np.random.default_rng(0).permutation(len(test))[: arguments.test_images]]
    arguments.logits.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in arguments.seeds:
        for size in arguments.sizes:
            size = min(size, len(train))
            file = arguments.logits / f"{len(table.labels)}-labels-{size}-{seed}.npz"
            if not file.exists():
                np.savez(file, **trained(drawn(table, train, test, size, seed), seed))
            rows.append(measured(np.load(file), size, seed))
            print(json.dumps(rows[-1]), flush=True)
            result = {"test_images": len(test), "labels": len(table.labels), "summary": summary(rows), "rows": rows}
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
