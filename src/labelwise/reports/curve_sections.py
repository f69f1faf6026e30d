"""The parts of a page that are curves and maps: precision and recall, thresholds, calibration, company, training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from labelwise.analysis.curves import CoOccurrence, common_threshold, precision_recall_curve, reliability
from labelwise.analysis.measured import MeasuredRun
from labelwise.reports.charts import heat_map, small_curves
from labelwise.reports.html import Html, Section, join, percent, table, tag
from labelwise.reports.svg import Axes, figure, legend, line_chart, mark, path_of

_CURVES = 24  # labels
_TOO_FAR = 0.05  # calibration error: scores are no probabilities any more


def curves_section(run: MeasuredRun, runs: Sequence[MeasuredRun]) -> Section:
    """Curves of all `runs`; the labels are in the order of `run`, whose thresholds are marked."""
    order = np.argsort(np.where(np.isnan(run.average_precision), 2, run.average_precision), kind="stable")[:_CURVES]
    curves = {
        one.name: [_closed(precision_recall_curve(one.values[:, n], one.targets[:, n])) for n in order] for one in runs
    }
    captions = [" / ".join(percent(float(one.average_precision[n])) for one in runs) for n in order]
    rows = {row["label"]: row for row in run.evaluation.to_dict()["per_label"]}
    now = [(_fraction(rows[run.labels[n]]["recall"]), _fraction(rows[run.labels[n]]["precision"])) for n in order]
    several = f" The order and the dots are those of {run.name}." if len(runs) > 1 else ""
    names = [run.labels[n] for n in order]
    key = tag("p", legend([one.name for one in runs])) if len(runs) > 1 else None
    left_out = f" The {_CURVES} hardest labels of {len(run.labels)}." if len(run.labels) > _CURVES else ""
    return Section(
        "Precision against recall",
        join(key, small_curves(names, curves, captions, now)),
        "Across: recall from 0 to 1; upwards: precision from 0 to 1. The hardest label first; the number is its "
        f"average precision, the dot is where its threshold puts it.{several}{left_out}",
    )


def sureness_section(run: MeasuredRun) -> Section:
    """Thresholds and calibration."""
    charts = [_reliability(run)]
    if run.config.task == "multi-label":
        found = common_threshold(run.scores, run.targets)
        series = {
            name: [(float(t), 100 * float(v)) for t, v in zip(found.thresholds, values, strict=True)]
            for name, values in (("precision", found.precision), ("recall", found.recall), ("F1", found.f1))
        }
        best = found.thresholds[np.nanargmax(found.f1)] if not np.isnan(found.f1).all() else math.nan
        note = (
            f"One threshold of {best:.2f} for all labels would give an OF1 of {100 * np.nanmax(found.f1):.1f}; "
            f"the model's own thresholds give {percent(run.evaluation.scores.at_thresholds.OF1)}."
        )
        charts.insert(0, _threshold_chart(series, note))
    said = (
        f"Scores come from (logit - {run.config.offset:.2f}) / {run.config.temperature:.2f}; their expected "
        f"calibration error is {percent(run.evaluation.ece_after)} (from plain logits: "
        f"{percent(run.evaluation.ece_before)})."
    )
    if run.evaluation.ece_after > _TOO_FAR:
        said += f" To mend it: labelwise evaluate {run.run.source} --data … --fit-temperature --fit-on val --save"
    return Section("Thresholds and calibration", tag("div", *charts, class_="charts"), said)


def _threshold_chart(series: dict[str, list[tuple[float, float]]], note: str) -> Html:
    axes = Axes((0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 25.0, 50.0, 75.0, 100.0))
    drawn = axes.drawn("one threshold for all labels")
    for number, points in enumerate(series.values(), start=1):
        drawn.append(path_of([axes.place(point) for point in points if math.isfinite(point[1])], number))
    title = "If all labels had one threshold"
    return figure(title, list(series), axes.svg(drawn, f"{title}: precision, recall and F1 in percent"), note)


def _reliability(run: MeasuredRun) -> Html:
    bins = reliability(run.scores, run.targets)
    axes = Axes((0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 25.0, 50.0, 75.0, 100.0))
    (left, low), (right, high) = axes.place((0, 0)), axes.place((1, 100))
    drawn = [*axes.drawn("score"), tag("line", x1=left, y1=low, x2=right, y2=high, class_="ideal")]
    spots = [axes.place((one.score, 100 * one.share)) for one in bins]
    drawn.append(path_of(spots, 1))
    for spot, one in zip(spots, bins, strict=True):
        words = f"scores around {one.score:.2f}: {one.share:.0%} of {one.entries:,} are right"
        drawn.append(mark(spot, 1, words))
    title = "Do scores mean what they say?"
    picture = axes.svg(drawn, f"{title} Share that is right against the score.")
    note = "Percent of them that is right, for scores in 15 bins. On the dashed line, a score is a probability."
    return figure(title, [], picture, note)


def together_section(run: MeasuredRun, found: CoOccurrence) -> Section:
    names = [run.labels[n] for n in found.columns]
    charts = [
        heat_map(names, found.truth, title="In truth", what="of the images with {row}, {value} have {column}"),
        heat_map(
            names, found.predicted, title="As named", what="of the images called {row}, {value} are called {column}"
        ),
    ]
    surprising = [
        [f"{names[a]} \N{RIGHTWARDS ARROW} {names[b]}", percent(truth), percent(named), f"{100 * (named - truth):+.1f}"]
        for a, b, truth, named in found.surprises()[:8]
    ]
    heads = ["of the images with … how many also have …", "in truth", "as named", "difference"]
    left_out = f" The {len(names)} most frequent labels of {len(run.labels)}." if len(names) < len(run.labels) else ""
    return Section(
        "Labels that come together",
        join(tag("div", *charts, class_="charts"), table(heads, surprising) if surprising else None),
        "Row, column: of the images with the row's label, the share that also has the column's; fuller is more. A "
        f"model that learned the company a label keeps instead of the label names too much of it.{left_out}",
    )


def training_section(runs: Sequence[MeasuredRun]) -> Section | None:
    def series(key: str) -> dict[str, list[tuple[float, float]]]:
        return {
            run.name if len(runs) > 1 else "": [
                (float(entry["epoch"]), float(entry[key])) for entry in run.run.history if key in entry
            ]
            for run in runs
        }

    charts = [
        line_chart(series(key), title=title, x_label="epoch", y_label=words)
        for key, title, words in (
            ("mAP", "mAP on validation images", "mAP"),
            ("loss", "Training loss", "loss"),
            ("lr", "Learning rate", "rate"),
        )
        if any(series(key).values())
    ]
    if not charts:
        return None
    return Section("Training", tag("div", *charts, class_="charts"))


def _closed(curve: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """From recall 0 on: a first step at the first point's precision."""
    return [(0.0, curve[0][1]), *curve] if curve else []


def _fraction(value: float | None) -> float:
    return math.nan if value is None else value / 100
