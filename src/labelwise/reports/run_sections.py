"""What report.html shows about one run: its labels, curves, calibration, training, and images with its mistakes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.analysis.curves import best_f1, common_threshold, few_of_each, precision_recall_curve, reliability
from labelwise.analysis.measured import MeasuredRun
from labelwise.analysis.quality import LabelIssue
from labelwise.core.errors import counted, shortened
from labelwise.data.inspection import FEW, Inspection
from labelwise.reports.charts import SHARES, Point, Row, line_chart, plot, row_chart
from labelwise.reports.html import Html, percent
from labelwise.reports.overlay import data_uri, overlay
from labelwise.runtime.prediction import Prediction
from labelwise.runtime.tagger import Tagger

_LABELS = 40  # in a chart; with more, the best and the worst half of that many
_CURVES = 24  # labels


def label_rows(run: MeasuredRun) -> list[dict[str, Any]]:
    """One row per label, in percent."""
    rows = run.evaluation.to_dict()["per_label"]
    for column, row in enumerate(rows):
        found = best_f1(run.values[:, column], run.targets[:, column])
        row["best_F1"] = None if math.isnan(found) else 100 * found
    return [dict(row) for row in rows]


def shown_labels(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The labels from the best to the worst, as a chart and for a table."""
    best_first = sorted(rows, key=lambda row: -(row["AP"] if row["AP"] is not None else -1))
    half = _LABELS // 2
    shown = best_first if len(rows) <= _LABELS else best_first[:half] + best_first[-half:]
    bars = [Row(row["label"], math.nan if row["AP"] is None else row["AP"], images=row["positives"]) for row in shown]
    few = sum(row["positives"] < FEW for row in rows)
    note = f"Grey: fewer than {FEW} images have the label, so that its number is mostly luck." if few else ""
    return {"rows": shown, "half": half, "chart": row_chart(bars, title="AP of each label", note=note, style="bars")}


def curves(run: MeasuredRun, runs: Sequence[MeasuredRun]) -> list[dict[str, Any]]:
    """Precision-recall curves of all `runs`, the hardest label of `run` first, with the point at its threshold."""
    rows = run.evaluation.to_dict()["per_label"]
    order = np.argsort(np.where(np.isnan(run.average_precision), 2, run.average_precision), kind="stable")[:_CURVES]
    return [
        {
            "label": run.labels[n],
            "caption": " / ".join(percent(float(one.average_precision[n])) for one in runs),
            "curves": [_from_zero(precision_recall_curve(one.values[:, n], one.targets[:, n])) for one in runs],
            "now": (rows[n]["recall"], rows[n]["precision"]),
            "images": rows[n]["positives"],
            "few": rows[n]["positives"] < FEW,
        }
        for n in order
    ]


def _from_zero(curve: list[Point]) -> list[Point]:
    """The curve from recall 0 on, with the precision of its first positive: before that, precision is 0 by definition
    and a line from there would show half of the area."""
    found = [point for point in curve if point[0] > 0]
    return [(0.0, found[0][1]), *found] if found else []


def calibration_charts(run: MeasuredRun) -> list[Html]:
    return [*([_threshold_chart(run)] if run.config.task == "multi-label" else []), _reliability_chart(run)]


def _threshold_chart(run: MeasuredRun) -> Html:
    found = common_threshold(run.scores, run.targets)
    series = {
        name: [(float(t), 100 * float(v)) for t, v in zip(found.thresholds, values, strict=True) if math.isfinite(v)]
        for name, values in (("precision", found.precision), ("recall", found.recall), ("F1", found.f1))
    }
    best = found.thresholds[np.nanargmax(found.f1)] if not np.isnan(found.f1).all() else math.nan
    title = "One threshold for all labels"
    return plot(
        SHARES,
        series,
        title=title,
        x_label="common threshold",
        note=f"The best common threshold, {best:.2f}, gives an OF1 of {100 * np.nanmax(found.f1):.1f}; the model's own "
        f"thresholds give {percent(run.evaluation.scores.at_thresholds.OF1)}.",
        description=f"{title}: precision, recall and F1 in percent",
    )


def _reliability_chart(run: MeasuredRun) -> Html:
    bins = reliability(run.scores, run.targets)
    points = [(one.score, 100 * one.share) for one in bins]
    words = [f"scores around {one.score:.2f}: {one.share:.0%} of {one.entries:,} are correct" for one in bins]
    title = "Reliability diagram"
    return plot(
        SHARES,
        {"": points},
        title=title,
        x_label="score",
        marks=[(1, point, text) for point, text in zip(points, words, strict=True)],
        ideal=True,
        note="Percentage of correct labels against the score, in 15 bins. Dashed: perfect calibration.",
        description=f"{title}: percentage of correct labels against the score.",
    )


def training_charts(runs: Sequence[MeasuredRun]) -> list[Html]:
    def points(run: MeasuredRun, key: str) -> list[Point]:
        return [(float(entry["epoch"]), float(entry[key])) for entry in run.run.history if key in entry]

    def series(key: str) -> dict[str, list[Point]]:
        if len(runs) > 1:
            return {run.name: points(run, key) for run in runs}
        both = {name: points(runs[0], f"{key}_{name}") for name in ("averaged", "raw")}
        return both if all(both.values()) else {"": points(runs[0], key)}

    return [
        line_chart(series(key), title=title, x_label="epoch", y_label=words)
        for key, title, words in (
            ("mAP", "mAP on validation images", "mAP"),
            ("loss", "Training loss", "loss"),
            ("lr", "Learning rate", "rate"),
        )
        if any(series(key).values())
    ]


def prediction_cards(run: MeasuredRun, images: int, progress: bool = True) -> list[dict[str, Any]]:
    """Some images, evenly spread over the table, with what the model predicts and where it looked."""
    rows = sorted({round(row) for row in np.linspace(0, len(run.table) - 1, min(images, len(run.table)))})
    tagger = Tagger(run.run.model())
    found = tagger.predict([run.table.images[row] for row in rows], on_bad_image="skip", progress=progress)
    return [_card(one, run.table.present(row)) for row, one in zip(rows, found, strict=True) if one.error is None]


def _card(prediction: Prediction, truth: Sequence[str]) -> dict[str, Any]:
    image = prediction.open_image()
    predicted = [
        {
            "label": label,
            "score": score,
            "right": label in truth,
            "uri": data_uri(overlay(image, prediction.attention(label), prediction.preprocessing, score=score), 200),
        }
        for label, score in zip(prediction.labels, prediction.scores, strict=True)
    ]
    return {
        "uri": data_uri(image),
        "path": prediction.name,
        "name": Path(prediction.name).name,
        "truth": list(truth),
        "missed": [label for label in truth if label not in prediction.labels],
        "wrong": sum(not one["right"] for one in predicted),
        "predicted": predicted,
    }


def issues_to_show(issues: Sequence[LabelIssue], kind: str, most: int) -> list[LabelIssue]:
    return few_of_each((issue for issue in issues if issue.kind == kind), lambda issue: issue.column, most)


def data_problems(found: Inspection, run: MeasuredRun) -> list[str]:
    """What is wrong with the data, and with how the model fits it."""
    said = list(found.problems)
    bad = run.evaluation.bad_images
    if bad:
        first = f"{bad[0].path} ({bad[0].reason})"
        said.insert(0, f"left out: {counted(len(bad), 'image')} that cannot be decoded, the first: {first}.")
    for names, words in (
        (run.evaluation.labels_not_in_data, "of the model that the data does not have (not measured)"),
        (run.evaluation.labels_ignored, "of the data that the model does not have (ignored)"),
    ):
        if names:
            said.append(f"{counted(len(names), 'label')} {words}: {shortened(names, 8)}.")
    return said
