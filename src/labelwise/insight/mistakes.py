"""The mistakes to look at first: what a model was surest of and wrong about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from labelwise.evaluation.fit import logit_thresholds
from labelwise.insight.measured import MeasuredRun


@dataclass(frozen=True)
class Mistake:
    image: str
    label: str
    kind: Literal["false positive", "miss"]
    score: float
    threshold: float
    present: tuple[str, ...]  # what is in the picture


def worst_mistakes(
    run: MeasuredRun, kind: Literal["false positive", "miss"], most: int, per_label: int = 3
) -> list[Mistake]:
    """Furthest on the wrong side of their thresholds first. At most `per_label` of one label: otherwise the hardest
    label would fill the list."""
    wrong = run.predicted & (run.targets == 0) if kind == "false positive" else ~run.predicted & (run.targets == 1)
    rows, columns = np.nonzero(wrong)
    margin = np.abs(run.logits - logit_thresholds(run.config))[rows, columns]
    found: list[Mistake] = []
    taken = np.zeros(len(run.labels), int)
    for place in np.argsort(-margin, kind="stable"):
        row, column = int(rows[place]), int(columns[place])
        if len(found) == most:
            break
        if taken[column] == per_label:
            continue
        taken[column] += 1
        score, threshold = float(run.scores[row, column]), float(run.thresholds[column])
        present = tuple(run.table.present(row))
        found.append(Mistake(run.table.images[row], run.labels[column], kind, score, threshold, present))
    return found
