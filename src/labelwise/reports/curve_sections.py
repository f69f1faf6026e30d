"""The sections with curves: precision and recall, thresholds, calibration, co-occurrence, training."""

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
_POORLY_CALIBRATED = 0.05  # expected calibration error


def curves_section(run: MeasuredRun, runs: Sequence[MeasuredRun]) -> Section:
    """Curves of all `runs`; the labels are in the order of `run`, whose thresholds are marked."""
    order = np.argsort(np.where(np.isnan(run.average_precision), 2, run.average_precision), kind="stable")[:_CURVES]
    curves = {
        one.name: [_closed(precision_recall_curve(one.values[:, n], one.targets[:, n])) for n in order] for one in runs
    }
    captions = [" / ".join(percent(float(one.average_precision[n])) for one in runs) for n in order]
    rows = {row["label"]: row for row in run.evaluation.to_dict()["per_label"]}
    now = [(_fraction(rows[run.labels[n]]["recall"]), _fraction(rows[run.labels[n]]["precision"])) for n in order]
    several = f" Order and dots are those of {run.name}." if len(runs) > 1 else ""
    names = [run.labels[n] for n in order]
    key = tag("p", legend([one.name for one in runs])) if len(runs) > 1 else None
    left_out = f" Shown: the {_CURVES} hardest of {len(run.labels)} labels." if len(run.labels) > _CURVES else ""
    return Section(
        "Precision-recall curves",
        join(key, small_curves(names, curves, captions, now)),
        "x axis: recall from 0 to 1; y axis: precision from 0 to 1. The hardest label comes first. The number is the "
        f"average precision, the dot is the operating point at the label's threshold.{several}{left_out}",
    )


def calibration_section(run: MeasuredRun) -> Section:
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
            f"The best common threshold, {best:.2f}, gives an OF1 of {100 * np.nanmax(found.f1):.1f}; the model's own "
            f"thresholds give {percent(run.evaluation.scores.at_thresholds.OF1)}."
        )
        charts.insert(0, _threshold_chart(series, note))
    intro = (
        f"Expected calibration error: {percent(run.evaluation.ece_after)}, and {percent(run.evaluation.ece_before)} "
        f"without the model's temperature of {run.config.temperature:.2f} and offset of {run.config.offset:.2f}."
    )
    if run.evaluation.ece_after > _POORLY_CALIBRATED:
        intro += f" To fix it: labelwise evaluate {run.run.source} --data … --fit-temperature --fit-on val --save"
    return Section("Thresholds and calibration", tag("div", *charts, class_="charts"), intro)


def _threshold_chart(series: dict[str, list[tuple[float, float]]], note: str) -> Html:
    axes = Axes((0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 25.0, 50.0, 75.0, 100.0))
    drawn = axes.drawn("common threshold")
    for number, points in enumerate(series.values(), start=1):
        drawn.append(path_of([axes.place(point) for point in points if math.isfinite(point[1])], number))
    title = "One threshold for all labels"
    return figure(title, list(series), axes.svg(drawn, f"{title}: precision, recall and F1 in percent"), note)


def _reliability(run: MeasuredRun) -> Html:
    bins = reliability(run.scores, run.targets)
    axes = Axes((0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 25.0, 50.0, 75.0, 100.0))
    (left, low), (right, high) = axes.place((0, 0)), axes.place((1, 100))
    drawn = [*axes.drawn("score"), tag("line", x1=left, y1=low, x2=right, y2=high, class_="ideal")]
    spots = [axes.place((one.score, 100 * one.share)) for one in bins]
    drawn.append(path_of(spots, 1))
    for spot, one in zip(spots, bins, strict=True):
        words = f"scores around {one.score:.2f}: {one.share:.0%} of {one.entries:,} are correct"
        drawn.append(mark(spot, 1, words))
    title = "Reliability diagram"
    note = "Percentage of correct labels against the score, in 15 bins. Dashed: perfect calibration."
    return figure(title, [], axes.svg(drawn, f"{title}: percentage of correct labels against the score."), note)


def together_section(run: MeasuredRun, found: CoOccurrence) -> Section:
    names = [run.labels[n] for n in found.columns]
    charts = [
        heat_map(names, found.truth, title="Ground truth", what="of the images with {row}, {value} have {column}"),
        heat_map(
            names,
            found.predicted,
            title="Predicted",
            what="of the images predicted {row}, {value} are predicted {column}",
        ),
    ]
    surprising = [
        [
            f"{names[a]} \N{RIGHTWARDS ARROW} {names[b]}",
            percent(truth),
            percent(predicted),
            f"{100 * (predicted - truth):+.1f}",
        ]
        for a, b, truth, predicted in found.surprises()[:8]
    ]
    heads = ["of the images with … how many also have …", "ground truth", "predicted", "difference"]
    cut = len(names) < len(run.labels)
    left_out = f" Shown: the {len(names)} most frequent of {len(run.labels)} labels." if cut else ""
    return Section(
        "Co-occurrence",
        join(tag("div", *charts, class_="charts"), table(heads, surprising) if surprising else None),
        "A cell is the share of the images with the row's label that also have the column's label. A model that relies "
        f"on context instead of the object predicts frequent companions too often.{left_out}",
    )


def training_section(runs: Sequence[MeasuredRun]) -> Section | None:
    def points(run: MeasuredRun, key: str) -> list[tuple[float, float]]:
        return [(float(entry["epoch"]), float(entry[key])) for entry in run.run.history if key in entry]

    def series(key: str) -> dict[str, list[tuple[float, float]]]:
        if len(runs) > 1:
            return {run.name: points(run, key) for run in runs}
        both = {name: points(runs[0], f"{key}_{name}") for name in ("averaged", "raw")}
        return both if all(both.values()) else {"": points(runs[0], key)}

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
    """The curve from recall 0 on, with the precision of its first point."""
    return [(0.0, curve[0][1]), *curve] if curve else []


def _fraction(value: float | None) -> float:
    return math.nan if value is None else value / 100
