"""How much does it help to know some labels of an image? A trained C-Tran, told a share of each test image's labels.

    python benchmarks/known_labels.py RUN [RUN …] --json docs/results/known-labels-coco.json

The runs are seeds of one training with a head that takes known labels and a frozen backbone. For every share, labels
are drawn at random for each image, present or absent ones, and told to the model. mAP is that of the labels that are
left, once with what is known and once without: the same entries, so the difference is what knowing is worth.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor

from labelwise.analysis.measured import report_data
from labelwise.core.errors import LabelwiseError
from labelwise.features import FeatureCache
from labelwise.heads import Head
from labelwise.metrics import mean_average_precision
from labelwise.training.run import Run

SHARES = (0.1, 0.25, 0.5, 0.75)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--split", default="test")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    runs = [measure(Run(path), arguments.split) for path in arguments.runs]
    arguments.json.write_text(json.dumps({"rows": summary(runs), "runs": runs}, indent=1) + "\n")
    for row in summary(runs):
        print(row)


def measure(run: Run, split: str) -> list[dict[str, float]]:
    """mAP of the labels that are left, by the share that is known."""
    model = run.model().eval()
    if not model.head.takes_known:
        raise LabelwiseError(f"{run.source}: the head {model.config.head.kind!r} cannot use known labels")
    table = report_data([run], None, split).measured
    features = FeatureCache.build(table, model.backbone, model.config.preprocessing, flips=False, engine="auto")
    targets = torch.from_numpy(table.targets()).float()  # [M, N]
    alone = logits_of(model.head, features, torch.full_like(targets, -1))
    rows = []
    for share in SHARES:
        drawn = torch.rand(targets.shape, generator=torch.Generator().manual_seed(0)) < share
        known = targets.where(drawn, -1)
        left = targets.where(~drawn, -1)
        told = logits_of(model.head, features, known)
        scores = {"told": told, "not_told": alone}
        rows.append({"share": share} | {name: 100 * mean_average_precision(x, left) for name, x in scores.items()})
    return rows


@torch.inference_mode()
def logits_of(head: Head, features: FeatureCache, known: Tensor) -> Tensor:
    """Logits [M, N] of cached maps, with what is known of each image [M, N]."""
    rows = torch.as_tensor(features.rows).split(64)
    return torch.cat([head(features.batch(some), known[some]).float() for some in rows])


def summary(runs: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    """Means over the runs, and the standard deviation of the gain."""
    found = []
    for same in zip(*runs, strict=True):
        gains = [row["told"] - row["not_told"] for row in same]
        spread = {"gain_sd": stdev(gains)} if len(gains) > 1 else {}
        means = {name: mean(row[name] for row in same) for name in ("told", "not_told")}
        found.append({"share": same[0]["share"]} | means | {"gain": mean(gains)} | spread)
    return found


if __name__ == "__main__":
    main()
