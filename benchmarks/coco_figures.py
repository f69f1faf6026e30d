"""Draw the figures of docs/research/coco.md from docs/results/coco-*.json, as far as there are results.

python benchmarks/coco_figures.py
"""

from __future__ import annotations

import json
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from study_figure import DOCS, NAMES, draw_study, runs_by_row

RELATED = (("cow", "horse"), ("bicycle", "motorcycle"), ("dining table", "train"))  # HSQ figures 3, 4 and 7


def main() -> None:
    found = runs_by_row("coco-study", NAMES)
    draw_study(found, "coco-study")
    draw_related(found)
    pairs = DOCS / "results" / "coco-pairs.json"
    if pairs.exists() and (results := json.loads(pairs.read_text(encoding="utf-8")))["heads"]:
        draw_gains(results)


def draw_related(found: dict[str, list[dict[str, Any]]]) -> None:
    """The AP of two labels in every run, and the mean gap between them."""
    figure, panels = plt.subplots(1, len(RELATED), figsize=(11, 4), layout="constrained")
    for axes, (first, second) in zip(panels, RELATED, strict=True):
        for name, runs in found.items():
            first_scores, second_scores = ([run["AP"][label] for run in runs] for label in (first, second))
            gap = mean(abs(a - b) for a, b in zip(first_scores, second_scores, strict=True))
            axes.plot(first_scores, second_scores, "o", alpha=0.8, label=f"{NAMES[name]}: gap {gap:.1f}")
        draw_equal_line(axes)
        axes.set(xlabel=f"AP of {first}", ylabel=f"AP of {second}")
        axes.legend(fontsize=6)
        axes.grid(alpha=0.3)
    figure.savefig(DOCS / "images" / "coco-related-labels.png", dpi=110)


def draw_equal_line(axes: Axes) -> None:
    """Where both labels have the same AP, if that is in the picture; the view stays as it is."""
    view = axes.get_xlim(), axes.get_ylim()
    axes.plot([0, 100], [0, 100], "--", color="gray", linewidth=1)
    axes.set(xlim=view[0], ylim=view[1])


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
