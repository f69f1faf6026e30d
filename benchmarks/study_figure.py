"""Draw docs/images/study.png from docs/results/voc-study.json: every run of every head, and the same against its cost.

python benchmarks/study_figure.py
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

DOCS = Path(__file__).resolve().parents[1] / "docs"
NAMES = {  # the heads of the study; its other rows are variations of them
    "hsq": "HSQ",
    "hsq-baseline": "HSQ without experts",
    "q2l": "Query2Label",
    "hsq-linear": "HSQ-Linear",
    "transformer-decoder": "transformer decoder",
    "ml-decoder-k80": "ML-Decoder, 80 queries",
    "ml-decoder-k20": "ML-Decoder, 20 queries",
    "ml-decoder-k5": "ML-Decoder, 5 queries",
    "csra": "CSRA",
    "gap": "GAP (linear probe)",
    "gap-without-pairs": "GAP without pair_mix",
}
TO_THE_LEFT = ("hsq", "hsq-baseline", "q2l", "hsq-linear", "ml-decoder-k20")  # of their dot, where names have room
# In points, where dots are close to each other.
RAISED = {"q2l": 8, "hsq-baseline": -1, "hsq-linear": -10, "ml-decoder-k80": -8, "ml-decoder-k5": -8}


def main() -> None:
    draw_study(runs_by_row("voc-study", NAMES), "study")


def runs_by_row(results: str, names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """The runs of these rows, as far as there are any."""
    runs = json.loads((DOCS / "results" / f"{results}.json").read_text(encoding="utf-8"))["runs"]
    found = {name: [run for run in runs if run["row"] == name] for name in names}
    return {name: same for name, same in found.items() if same}


def draw_study(found: dict[str, list[dict[str, Any]]], image: str, to_the_left: Collection[str] = TO_THE_LEFT) -> None:
    """A panel of all runs, and one of their means against the cost, where some names stand to the left of their dot."""
    figure, (by_head, by_cost) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    draw_heads(by_head, found)
    draw_costs(by_cost, found, to_the_left)
    figure.savefig(DOCS / "images" / f"{image}.png", dpi=110)


def draw_heads(axes: Axes, found: dict[str, list[dict[str, Any]]]) -> None:
    """A dot for each seed, a bar for their mean, the best head on top."""
    ranked = sorted(found, key=lambda name: mean(run["mAP"] for run in found[name]))
    for place, name in enumerate(ranked):
        scores = [run["mAP"] for run in found[name]]
        axes.plot([mean(scores)] * 2, [place - 0.3, place + 0.3], color="black", linewidth=1.5)
        axes.plot(scores, [place] * len(scores), "o", color="tab:blue", alpha=0.7)
    axes.set_yticks(range(len(ranked)), [NAMES[name] for name in ranked])
    axes.set_xlabel("test mAP; dots are seeds, bars their means")
    axes.grid(axis="x", alpha=0.3)


def draw_costs(axes: Axes, found: dict[str, list[dict[str, Any]]], to_the_left: Collection[str]) -> None:
    for name, same in found.items():
        score, cost = mean(run["mAP"] for run in same), same[0]["head_macs"] / 1e6
        axes.plot(cost, score, "o", color="tab:blue")
        right = name not in to_the_left
        axes.annotate(
            NAMES[name],
            (cost, score),
            xytext=(6 if right else -6, RAISED.get(name, 0)),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            fontsize=8,
        )
    axes.set_xlabel("multiply-adds of the head, in millions (backbone: 575)")
    axes.set_ylabel("mAP")
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    main()
