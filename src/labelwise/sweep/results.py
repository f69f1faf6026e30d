"""The results of a sweep side by side: a row for each run, means over seeds, as CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from labelwise.sweep.execute import Outcome
from labelwise.sweep.grid import full_key

METRICS = ("mAP", "CF1", "OF1")


def rows_of(outcomes: Sequence[Outcome], out: Path) -> list[dict[str, Any]]:
    """Settings, status and numbers of each run; what a run does not have is None."""
    keys = list(dict.fromkeys(key for outcome in outcomes for key in outcome.planned.settings))
    rows = []
    for outcome in outcomes:
        measured = outcome.measured or {}
        history = _history(out / outcome.planned.name)
        rows.append(
            {
                "run": outcome.planned.name,
                **{key: outcome.planned.settings.get(key) for key in keys},
                "status": outcome.status,
                **{key: measured.get(key) for key in METRICS},
                "validation_mAP": max((row["mAP"] for row in history if row.get("mAP") is not None), default=None),
                "parameters": measured.get("complexity", {}).get("parameters"),
                "macs": measured.get("complexity", {}).get("macs"),
                "epochs": len(history),
                "seconds": history[-1]["seconds"] if history else None,
                "reason": outcome.reason or None,
            }
        )
    return rows


def over_seeds(rows: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> list[dict[str, Any]]:
    """Runs that differ only in their seed as one row: mean and standard deviation of each metric over the seeds.

    >>> rows = [{"head": "hsq", "seed": s, "mAP": m, "CF1": m, "OF1": None} for s, m in enumerate([90.0, 92.0])]
    >>> over_seeds(rows, ["head", "seed"])
    [{'head': 'hsq', 'seeds': 2, 'mAP': 91.0, 'mAP_sd': 1.4142135623730951, 'CF1': 91.0, 'CF1_sd': 1.4142135623730951}]
    """
    kept = [key for key in settings if full_key(key) != "seed"]
    if len(kept) == len(settings):
        return []
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(json.dumps([row[key] for key in kept]), []).append(row)
    summary = []
    for members in groups.values():
        entry: dict[str, Any] = {key: members[0][key] for key in kept}
        entry["seeds"] = sum(row["mAP"] is not None for row in members)
        for metric in METRICS:
            values = [row[metric] for row in members if row[metric] is not None]
            if values:
                entry |= {metric: mean(values), f"{metric}_sd": stdev(values) if len(values) > 1 else None}
        summary.append(entry)
    return summary


def write_results(rows: Sequence[Mapping[str, Any]], summary: Sequence[Mapping[str, Any]], out: Path) -> None:
    """results.csv and results.json, written anew after each run: an interrupted sweep has what it knows so far."""
    out.mkdir(parents=True, exist_ok=True)
    content = {"runs": list(rows), "over_seeds": list(summary)}
    (out / "results.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with (out / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _history(folder: Path) -> list[dict[str, Any]]:
    from labelwise.insight.run import read_history

    return read_history(folder / "metrics.jsonl")
