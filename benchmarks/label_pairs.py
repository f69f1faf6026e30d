"""Do two labels help or hurt each other? Query2Label and HSQ with every pair of the 15 most frequent labels of MS-COCO.

    python benchmarks/label_pairs.py --data 'csv:coco14k.csv?root=/data/coco&splits=train,val,more,test' \\
        --out study/pairs --json docs/results/coco-pairs.json

A model of two labels is compared with models of each label alone: the same head, photos and steps. So what differs is
due to the other label. Heads have the settings of their row in benchmarks/study_coco.yaml, but for SHORTER: 105 pairs
and three seeds of 15 single labels make 300 models, about an hour on one core. Finished models are kept as their logits
on test: stop and start as you like. Pairs come in random order, so that those that are finished stand for all.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import NormalDist, mean, variance
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric

from labelwise import heads
from labelwise.core.arrays import Doubles
from labelwise.core.files import atomic_write
from labelwise.data import open_data
from labelwise.data.table import LabelTable
from labelwise.evaluation import benjamini_hochberg, bootstrap_draws
from labelwise.features import FeatureCache
from labelwise.training import load_recipe
from labelwise.training.batches import FeatureBatches, Share
from labelwise.training.display import Display
from labelwise.training.distributed import create_fabric
from labelwise.training.loop import Trainer
from labelwise.training.recipe import Recipe
from labelwise.training.setup import build_model
from study import read_study, save_arrays

HEADS = ("q2l", "hsq")
LABELS, SEEDS = 15, 3
# One pass over the photos, a quarter of the tokens of each: 12 s for a model.
SHORTER = {"epochs": 1, "pair_mix": 0.0, "model.options.token_dropout": 0.75, "data.validation": None}
SAMPLES = 1000
_TWO_SIDED = NormalDist().inv_cdf(0.975)


class Task(NamedTuple):
    """A model to train: a head with one or two labels."""

    head: str
    labels: tuple[str, ...]
    seed: int

    @property
    def name(self) -> str:
        return "_".join([self.head, *self.labels, f"seed-{self.seed}"]).replace(" ", "-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the logits")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()

    study, table = read_study("coco"), open_data(arguments.data)
    recipes = {head: load_recipe(None, study["always"] | study["rows"][head]["set"] | SHORTER) for head in HEADS}
    train, test = table.select(study["stages"]["test"]["data.train"]), table.select("test")
    labels = frequent(train, LABELS)
    model = build_model(recipes["hsq"], labels)
    caches = [
        FeatureCache.build(part, model.backbone, model.config.preprocessing, flips=False, engine="auto")
        for part in (train, test)
    ]
    fabric = create_fabric(recipes["hsq"])
    planned = list(tasks(labels))
    try:
        for number, task in enumerate(planned):
            file = arguments.out / f"{task.name}.npz"
            if not file.exists():
                recipe = recipes[task.head].model_copy(update={"seed": task.seed})
                logits = train_and_predict(task, recipe, train, caches[0], caches[1], fabric)
                atomic_write(file, partial(save_arrays, {"logits": logits}))
                print(f"[{number + 1} of {len(planned)}] {task.name}", flush=True)
    finally:  # also of a part, if it is stopped
        report = summary(labels, arguments.out, test)
        atomic_write(arguments.json, json.dumps(report, indent=1) + "\n")


def frequent(table: LabelTable, count: int) -> tuple[str, ...]:
    """The labels with the most images, the most frequent one first."""
    positives = (table.targets() == 1).sum(axis=0)
    return tuple(table.labels[n] for n in np.argsort(-positives, kind="stable")[:count])


def tasks(labels: tuple[str, ...]) -> Iterator[Task]:
    """Single labels first: they are what pairs are compared with, so their chance is averaged over several seeds."""
    for seed in range(SEEDS):
        yield from (Task(head, (label,), seed) for label in labels for head in HEADS)
    pairs = list(combinations(labels, 2))
    Random(0).shuffle(pairs)
    yield from (Task(head, pair, 0) for pair in pairs for head in HEADS)


def train_and_predict(
    task: Task, recipe: Recipe, train: LabelTable, features: FeatureCache, test_features: FeatureCache, fabric: Fabric
) -> np.ndarray:
    """Logits [M, n] on the test images of a model of the task's n labels."""
    torch.manual_seed(task.seed)
    head = heads.create(
        recipe.model.head, in_features=features.shape[0], labels=len(task.labels), **recipe.model.options
    )
    only = train.with_labels(task.labels)
    batches = FeatureBatches(features, None, (only, None), recipe.batch_size, task.seed, Share(), 0.0)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(head, batches, len(task.labels), recipe, Path(folder), fabric, Display(None), task.name).run(False)
    head.eval()
    with torch.inference_mode():
        rows = torch.as_tensor(test_features.rows).split(64)
        return torch.cat([head(test_features.batch(some)).float() for some in rows]).numpy()


class Measured(NamedTuple):
    """A label's average precision in one model, in percent: on all test images and on random halves [S]."""

    value: float
    samples: Doubles


def summary(labels: tuple[str, ...], out: Path, test: LabelTable) -> dict[str, Any]:
    """What each label gains by each partner, and the means of these gains, for every head."""
    targets = test.with_labels(labels).targets()
    found: dict[str, Any] = {"labels": list(labels), "settings": SHORTER, "heads": {}}
    for head in HEADS:
        alone, paired = read_models(head, labels, out, targets)
        if paired:  # they come after all single labels
            found["heads"][head] = transfer(labels, alone, paired)
    return found


def read_models(
    head: str, labels: tuple[str, ...], out: Path, targets: np.ndarray
) -> tuple[dict[str, list[Measured]], dict[tuple[str, str], Measured]]:
    """Of a head: every seed of each label alone, and (label, partner) in the pair's model; only what is finished."""
    alone: dict[str, list[Measured]] = {}
    paired: dict[tuple[str, str], Measured] = {}
    for task in tasks(labels):
        file = out / f"{task.name}.npz"
        if task.head != head or not file.exists():
            continue
        columns = [labels.index(label) for label in task.labels]
        draws = bootstrap_draws(np.load(file)["logits"], targets[:, columns], samples=SAMPLES)
        rows = zip(task.labels, draws.whole_average_precision, draws.average_precision, strict=True)
        for label, value, samples in rows:
            measured = Measured(100 * float(value), 100 * samples)
            if len(task.labels) == 1:
                alone.setdefault(label, []).append(measured)
            else:
                (partner,) = set(task.labels) - {label}
                paired[label, partner] = measured
    return alone, paired


def transfer(
    labels: Iterable[str], alone: dict[str, list[Measured]], paired: dict[tuple[str, str], Measured]
) -> dict[str, Any]:
    """Gains by partners, with intervals that hold both chances: which photos are in the test set, and the seeds.

    The chance of the seeds is the variance of a label's AP over the seeds of its model alone, pooled over the labels.
    It is that of the pair's one seed plus that of the mean of the seeds alone.
    """
    seed_variance = mean(variance(one.value for one in same) for same in alone.values())
    base = {
        label: Measured(mean(one.value for one in same), np.mean([one.samples for one in same], axis=0))
        for label, same in alone.items()
    }
    seeds = {label: len(same) for label, same in alone.items()}
    gains = {
        (label, partner): Measured(ours.value - base[label].value, ours.samples - base[label].samples)
        for (label, partner), ours in paired.items()
    }
    rows = [
        {"label": label, "partner": partner, "AP": paired[label, partner].value}
        | interval([gain], seed_variance * (1 + 1 / seeds[label]))
        for (label, partner), gain in gains.items()
    ]
    for row, significant in zip(rows, benjamini_hochberg(np.array([row["p"] for row in rows])), strict=True):
        row["significant"] = bool(significant)
    per_label = []
    for label in labels:
        own = [gain for (one, _), gain in gains.items() if one == label]
        if not own:
            continue
        chance = seed_variance * (1 / len(own) + 1 / seeds[label])
        per_label.append({"label": label, "AP_alone": base[label].value, "pairs": len(own)} | interval(own, chance))
    of_base = sum((row["pairs"] / len(gains)) ** 2 / seeds[row["label"]] for row in per_label)
    return {
        "seed_sd": math.sqrt(seed_variance),
        "mean": interval(list(gains.values()), seed_variance * (1 / len(gains) + of_base)),
        "per_label": per_label,
        "gains": rows,
        **count_pairs(rows),
    }


def interval(gains: list[Measured], seed_variance: float) -> dict[str, float]:
    """The mean of some gains, its 95 % interval and p-value."""
    value = mean(gain.value for gain in gains)
    of_photos = float(np.nanvar(np.mean([gain.samples for gain in gains], axis=0)))
    spread = max(1e-9, math.sqrt(of_photos + seed_variance))
    half, p = _TWO_SIDED * spread, 2 * NormalDist().cdf(-abs(value) / spread)
    return {"gain": value, "low": value - half, "high": value + half, "p": p}


def count_pairs(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Of the pairs: in how many do both labels gain, one of them, none; and the (label, partner) that surely do."""
    gain = {(row["label"], row["partner"]): row["gain"] for row in rows}
    gaining = [sum(gain[way] > 0 for way in (pair, pair[::-1])) for pair in gain if pair < pair[::-1]]
    return {
        "pairs": len(gaining),
        "both_gain": gaining.count(2),
        "one_gains": gaining.count(1),
        "none_gains": gaining.count(0),
        "significant_gains": sum(row["significant"] and row["gain"] > 0 for row in rows),
        "significant_losses": sum(row["significant"] and row["gain"] < 0 for row in rows),
    }


if __name__ == "__main__":
    main()
