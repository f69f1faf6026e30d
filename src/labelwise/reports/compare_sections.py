"""What report.html shows about several runs: which is better, in which labels, and whether that is significant."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labelwise.analysis.comparison import Comparison, best_in, improved_pairs
from labelwise.analysis.measured import MeasuredRun
from labelwise.reports.charts import Row, difference_chart, line_chart, row_chart, scatter_chart
from labelwise.reports.html import Html
from labelwise.training.recipe import short_key
from labelwise.training.settings import SEED, differing, seed_groups, sweeps

_SHOWN = 30  # labels in a chart of differences: those that differ most
_CHARTS = 6  # runs that get a chart of their own
_IN_TABLE = 200  # labels
_MODEL = ("model.backbone", "model.head", "model.size")  # every table shows them anyway


def compared(
    runs: Sequence[MeasuredRun],
    comparisons: Sequence[Comparison],
    settings: Sequence[Mapping[str, Any]],
    pairs: Sequence[tuple[int, int]],
) -> dict[str, Any]:
    keys = [key for key in differing(settings) if key not in _MODEL]
    return {
        "comparisons": comparisons,
        "reference": comparisons[0].reference,
        "comparison_of": {comparison.run.name: comparison for comparison in comparisons},
        "improved_pairs": improved_pairs,
        "best_in": dict(zip((run.name for run in runs), best_in(runs), strict=True)),
        "highest": np.fmax.reduce([run.average_precision for run in runs]),  # [N]
        "in_table": _IN_TABLE,
        "charts_shown": _CHARTS,
        "settings": [_listed(one, keys) for one in settings],
        "seeds": _seeds(runs, settings),
        "pairs": pairs,
        "map_chart": _map_chart(runs),
        "difference_charts": [
            difference_chart(
                c.run.labels, c.labels, c.significant, title=f"{c.run.name} minus {c.reference.name}", shown=_SHOWN
            )
            for c in comparisons[:_CHARTS]
        ],
        "pair_charts": [_pair_chart(runs, *pair) for pair in pairs],
        "settings_charts": [*_settings_charts(runs, settings), _cost_chart(runs)],
    }


def _map_chart(runs: Sequence[MeasuredRun]) -> Html:
    rows = []
    for number, run in enumerate(runs, start=1):
        found = run.evaluation.confidence["mAP"]
        rows.append(Row(run.name, 100 * run.evaluation.scores.mAP, 100 * found.low, 100 * found.high, series=number))
    note = "The intervals of two runs may overlap although their paired difference below is significant."
    return row_chart(rows, title="mAP with its 95% interval", note=note, style="dots")


def _seeds(runs: Sequence[MeasuredRun], settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation of runs that differ only in the seed; empty if there are none."""
    groups = seed_groups(settings)
    if all(len(group) < 2 for group in groups):
        return []
    first = [settings[group[0]] for group in groups]
    keys = [key for key in differing(first) if key != SEED]
    rows = []
    for group, one in zip(groups, first, strict=True):
        values = [100 * runs[index].evaluation.scores.mAP for index in group]
        deviation = statistics.stdev(values) if len(values) > 1 else None
        mean = statistics.mean(values)
        rows.append({"settings": _listed(one, keys), "precision": values, "mean": mean, "deviation": deviation})
    return rows


def _settings_charts(runs: Sequence[MeasuredRun], settings: Sequence[Mapping[str, Any]]) -> list[Html]:
    """mAP against each varied setting (HSQ figure 6)."""
    charts = []
    for key, lines in sweeps(settings).items():
        points = {
            line.name: [
                (value, 100 * statistics.mean(runs[index].evaluation.scores.mAP for index in indices))
                for value, indices in line.points.items()
            ]
            for line in lines
        }
        seeds = max(len(indices) for line in lines for indices in line.points.values())
        note = f"Mean of up to {seeds} seeds." if seeds > 1 else ""
        name = "input size in pixels" if key == "model.size" else short_key(key)
        charts.append(
            line_chart(points, title=f"mAP against {name}", x_label=name, y_label="mAP", note=note, x_at_points=True)
        )
    return charts


def _cost_chart(runs: Sequence[MeasuredRun]) -> Html:
    """mAP against the cost (HSQ table 1)."""
    cost = {run.name: (run.complexity["macs"] / 1e9, 100 * run.evaluation.scores.mAP) for run in runs}
    return scatter_chart(cost, title="mAP against cost", x_label="billions of multiply-adds per image", y_label="mAP")


def _pair_chart(runs: Sequence[MeasuredRun], a: int, b: int) -> Html:
    """Average precision of two related labels (HSQ figures 3, 4 and 7)."""
    points = {run.name: (100 * float(run.average_precision[a]), 100 * float(run.average_precision[b])) for run in runs}
    x, y = runs[0].labels[a], runs[0].labels[b]
    return scatter_chart(points, title=f"{x} and {y}", x_label=f"AP of {x}", y_label=f"AP of {y}", least=1.0)


def _listed(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{short_key(key)} {_value(settings[key])}" for key in keys if key in settings)


def _value(value: Any) -> str:
    return "\N{EN DASH}" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
