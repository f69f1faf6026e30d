"""The files beside the page: CSV and JSON."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labelwise.insight.cooccurrence import CoOccurrence
from labelwise.insight.measured import MeasuredRun


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Nothing is written for no rows but the file itself, so that what was there before does not stay."""
    with path.open("w", encoding="utf-8", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def run_row(run: MeasuredRun, settings: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A line of runs.csv: percentages, costs, and all settings that any of the runs has."""
    scores, found = run.evaluation.scores, run.evaluation.confidence["mAP"]
    return {
        "run": run.name,
        "source": run.run.source,
        "mAP": 100 * scores.mAP,
        "mAP_low": 100 * found.low,
        "mAP_high": 100 * found.high,
        "CF1": 100 * scores.at_thresholds.CF1,
        "OF1": 100 * scores.at_thresholds.OF1,
        "parameters": run.complexity["parameters"],
        "macs": run.complexity["macs"],
        **{key: settings.get(key, "") for key in dict.fromkeys(key for one in every for key in one)},
    }


def pair_rows(run: MeasuredRun, found: CoOccurrence) -> list[dict[str, Any]]:
    """The lines of cooccurrence.csv: fractions."""
    names = [run.labels[n] for n in found.columns]
    return [
        {"given": a, "also": b, "truth": found.truth[i, j], "predicted": found.predicted[i, j]}
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        if i != j
    ]


def finite(value: Any) -> Any:
    """JSON has no NaN: it becomes null.

    >>> finite({"a": [1.0, math.nan]})
    {'a': [1.0, None]}
    """
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
