"""Draw the figures of docs/research/coco.md from docs/results/coco-*.json, as far as there are results.

python benchmarks/coco_figures.py
"""

from __future__ import annotations

import json
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from study_figure import DOCS, NAMES, draw_study, runs_by_row

RELATED = (("cow", "horse"), ("bicycle", "motorcycle"), ("dining table", "train"))  # HSQ figures 3, 4 and 7


def main() -> None:
    found = runs_by_row("coco-study", NAMES)
    draw_study(found, "coco-study", to_the_left=("hsq", "hsq-baseline", "q2l", "hsq-linear"))
    draw_related(found)
    pairs = DOCS / "results" / "coco-pairs.json"
    if pairs.exists() and (results := json.loads(pairs.read_text(encoding="utf-8")))["heads"]:
        draw_gains(results)


def draw_related(found: dict[str, list[dict[str, Any]]]) -> None:
    """The AP of two labels in every run, and below it the mean gap between them."""
    figure, panels = plt.subplots(2, len(RELATED), figsize=(11, 6), layout="constrained", height_ratios=(3, 2))
    for column, (first, second) in enumerate(RELATED):
        runs_axes, gap_axes = panels[:, column]
        for place, runs in enumerate(found.values()):
            scores = [[run["AP"][label] for run in runs] for label in (first, second)]
            runs_axes.plot(*scores, "o", alpha=0.8, color=f"C{place}")
            gap_axes.barh(place, mean(abs(a - b) for a, b in zip(*scores, strict=True)), color=f"C{place}")
        runs_axes.set(xlabel=f"AP of {first}", ylabel=f"AP of {second}")
        runs_axes.grid(alpha=0.3)
        gap_axes.set_yticks(range(len(found)), [NAMES[name] for name in found] if column == 0 else [""] * len(found))
        gap_axes.invert_yaxis()
        gap_axes.set_xlabel("difference of the two, mean over seeds")
    figure.savefig(DOCS / "images" / "coco-related-labels.png", dpi=110)


def draw_gains(results: dict[str, Any]) -> None:
    """What each label (rows) gains by each partner (columns), a panel for each head; dots are significant."""
    labels = results["labels"]
    place = {label: n for n, label in enumerate(labels)}
    figure, panels = plt.subplots(1, len(results["heads"]), figsize=(12, 5.5), layout="constrained", squeeze=False)
    most = max(abs(row["gain"]) for head in results["heads"].values() for row in head["gains"])
    for axes, (name, head) in zip(panels[0], results["heads"].items(), strict=True):
        gains = np.full((len(labels), len(labels)), np.nan)
        for row in head["gains"]:
            gains[place[row["label"]], place[row["partner"]]] = row["gain"]
            if row["significant"]:
                axes.plot(place[row["partner"]], place[row["label"]], "k.", markersize=4)
        shown = axes.imshow(gains, cmap="RdBu", vmin=-most, vmax=most)
        axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=8)
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.set(title=NAMES[name], xlabel="trained with", ylabel="label")
    figure.colorbar(shown, ax=panels[0].tolist(), label="AP against the label alone", shrink=0.8)
    figure.savefig(DOCS / "images" / "coco-pairs.png", dpi=110)


if __name__ == "__main__":
    main()
