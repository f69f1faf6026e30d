"""How often 95 % confidence intervals hold the truth: simulated test sets of 60 to 5,000 images whose truth is known.

    python benchmarks/intervals.py --json docs/results/intervals.json

A world has 20 or 80 labels, each with a prevalence and a separation of its scores; images share hidden factors, so that
labels occur together and scores err together. The truth is the metric on 400,000 images, over the labels that have a
positive in the test set. The percentile bootstrap is the usual one: images are drawn with replacement.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labelwise.core.progress import track
from labelwise.evaluation.bootstrap import bootstrap_draws
from labelwise.metrics import average_precision, multilabel_scores

THRESHOLD, SAMPLES, LEVEL = 1.5, 200, 0.95
METRICS = ("mAP", "CP", "CR", "CF1", "OP", "OR", "OF1")


class World(NamedTuple):
    """Labels: log-odds of their prevalence [N], separation of their scores [N], and ties to hidden factors [N, 3]."""

    log_odds: np.ndarray
    separation: np.ndarray
    loadings: np.ndarray

    @classmethod
    def create(cls, labels: int, prevalence: float, seed: int) -> World:
        rng = np.random.default_rng([labels, seed])
        log_odds = rng.normal(np.log(prevalence / (1 - prevalence)), 1.0, labels)
        return cls(log_odds, rng.uniform(0.8, 3.5, labels), rng.uniform(-0.7, 0.7, (labels, 3)))

    def draw(self, images: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Scores and targets [M, N]."""
        factors = rng.normal(size=(images, 3))
        odds = self.log_odds + factors @ self.loadings.T
        targets = (rng.logistic(size=odds.shape) < odds).astype(np.int8)
        noise = rng.normal(size=odds.shape) + 0.4 * rng.normal(size=(images, 1))
        return (self.separation * targets + noise).astype(np.float32), targets


class Truth(NamedTuple):
    """Of each label [N], and overall."""

    average_precision: np.ndarray
    precision: np.ndarray
    recall: np.ndarray
    overall_precision: float
    overall_recall: float

    @classmethod
    def of(cls, world: World) -> Truth:
        scores, targets = world.draw(400_000, np.random.default_rng(0))
        predicted, positive = scores >= THRESHOLD, targets == 1
        correct = (predicted & positive).sum(axis=0)
        return cls(
            average_precision(scores, targets).numpy(),
            correct / predicted.sum(axis=0),
            correct / positive.sum(axis=0),
            correct.sum() / predicted.sum(),
            correct.sum() / positive.sum(),
        )

    def metrics(self, present: np.ndarray) -> dict[str, float]:
        """Over the labels [N] that are present in a test set."""
        ap, cp, cr = (float(each[present].mean()) for each in self[:3])
        op, recall = self.overall_precision, self.overall_recall
        f1 = [2 * p * r / (p + r) for p, r in ((cp, cr), (op, recall))]
        return dict(zip(METRICS, (ap, cp, cr, f1[0], op, recall, f1[1]), strict=True))


def percentile_interval(scores: np.ndarray, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The usual bootstrap's, of mAP."""
    rows = rng.integers(0, len(scores), (SAMPLES, len(scores)))
    drawn = [multilabel_scores(scores[one], targets[one], thresholds=THRESHOLD).mAP for one in rows]
    return np.nanpercentile(drawn, [100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2])


def coverage(labels: int, prevalence: float, images: int, sets: int) -> dict[str, object]:
    """The share of test sets whose intervals hold the truth; of four worlds."""
    held: dict[str, list[bool]] = {name: [] for name in METRICS}
    usual, errors, widths, outside = [], [], [], 0
    for seed in range(4):
        world, rng = World.create(labels, prevalence, seed), np.random.default_rng([seed, images])
        truth = Truth.of(world)
        for number in range(sets // 4):
            scores, targets = world.draw(images, rng)
            present = targets.any(axis=0)
            if not present.any():
                continue
            draws = bootstrap_draws(scores, targets, thresholds=THRESHOLD, samples=SAMPLES, seed=number)
            found, expected = draws.intervals(LEVEL), truth.metrics(present)
            for name in METRICS:
                held[name].append(found[name].low <= expected[name] <= found[name].high)
            errors.append(draws.whole_metrics["mAP"] - expected["mAP"])
            widths.append(found["mAP"].high - found["mAP"].low)
            outside += not found["mAP"].low <= draws.whole_metrics["mAP"] <= found["mAP"].high
            if number < 25 and images < 1500:  # it is slow
                low, high = percentile_interval(scores, targets, rng)
                usual.append(low <= expected["mAP"] <= high)
    return {
        "labels": labels,
        "prevalence": prevalence,
        "images": images,
        "sets": len(errors),
        "coverage": {name: round(100 * float(np.mean(values)), 1) for name, values in held.items()},
        "mAP_too_high_by": round(100 * float(np.mean(errors)), 2),
        "mAP_width": round(100 * float(np.mean(widths)), 2),
        "mAP_outside_its_interval": outside,
        "coverage_of_the_percentile_bootstrap": {
            "mAP": round(100 * float(np.mean(usual)), 1) if usual else None,
            "sets": len(usual),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[60, 150, 400, 1500, 5000])
    parser.add_argument("--sets", type=int, default=800, help="of each kind")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    kinds = [(n, p, m) for m in arguments.images for n in (20, 80) for p in (0.03, 0.1)]
    rows = []
    for labels, prevalence, images in track(kinds, "Simulating"):
        rows.append(coverage(labels, prevalence, images, arguments.sets))
        print(json.dumps(rows[-1]), flush=True)
        if arguments.json:
            arguments.json.write_text(
                json.dumps({"level": 100 * LEVEL, "samples": SAMPLES, "rows": rows}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
