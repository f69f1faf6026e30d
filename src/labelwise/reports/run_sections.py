"""The sections about one run: its metrics, every label, its experts, its cost, and problems in the data."""

from __future__ import annotations

import math
from typing import Any

from labelwise.analysis.curves import best_f1
from labelwise.analysis.measured import MeasuredRun
from labelwise.data.inspection import Inspection
from labelwise.reports.expert_sections import expert_figures, expert_words
from labelwise.reports.html import Html, Section, count, interval, join, part, percent, table, tag
from labelwise.reports.svg import bar_chart

SHOWN = 40  # labels in a chart; with more, the best and the worst half of that many


def headline(run: MeasuredRun, split: str) -> Html:
    """One sentence and the headline metrics."""
    scores, confidence = run.evaluation.scores, run.evaluation.confidence
    tiles = [
        ("mAP", percent(scores.mAP), interval(confidence.get("mAP"))),
        ("CF1", percent(scores.at_thresholds.CF1), interval(confidence.get("CF1"))),
        ("OF1", percent(scores.at_thresholds.OF1), interval(confidence.get("OF1"))),
        ("calibration error", percent(run.evaluation.ece_after), ""),
    ]
    parameters, macs = run.complexity["parameters"], run.complexity["macs"]
    sentence = (
        f"{run.run.head} on {run.config.backbone.name} at {run.config.preprocessing.size} pixels: {count(parameters)} "
        f"parameters, {count(macs)} multiply-adds. Measured on {scores.images:,} images ({split}) of "
        f"{run.table.source or 'the data'} with {len(run.labels):,} labels."
    )
    return join(tag("p", sentence, class_="lead"), part("tiles", values=tiles))


def numbers_section(run: MeasuredRun) -> Section:
    scores, confidence = run.evaluation.scores, run.evaluation.confidence
    six = scores.at_thresholds
    rows: list[list[str]] = [["mAP", "average precision, averaged over the labels", percent(scores.mAP)]]
    rows += [
        [name, words, percent(float(getattr(six, name)))]
        for name, words in (
            ("CP", "precision, averaged over the labels"),
            ("CR", "recall, averaged over the labels"),
            ("CF1", "harmonic mean of CP and CR"),
            ("OP", "precision over all predicted labels"),
            ("OR", "recall over all present labels"),
            ("OF1", "harmonic mean of OP and OR"),
        )
    ]
    for k, top in scores.at_top_k.items():
        rows += [
            [f"{name}_top{k}", f"{name} when every image gets its {k} best labels", percent(float(getattr(top, name)))]
            for name in ("CF1", "OF1")
        ]
    with_intervals = [[*row, interval(confidence.get(row[0]))] for row in rows]
    return Section(
        "Metrics",
        table(["metric", "meaning", "percent", "95% interval"], with_intervals, words=2),
        f"Percentile intervals from {run.evaluation.samples:,} bootstrap samples of the images."
        if run.evaluation.samples
        else "",
    )


def labels_section(run: MeasuredRun) -> Section:
    rows = sorted(label_rows(run), key=lambda row: -(row["AP"] if row["AP"] is not None else -1))
    shown, note = _ends(rows)
    chart = bar_chart([row["label"] for row in shown], {"": [row["AP"] for row in shown]}, title="Average precision")
    numbers = table(
        ["label", "AP", "images", "predicted", "precision", "recall", "F1", "best F1", "threshold"],
        [
            [
                row["label"],
                _one(row["AP"]),
                f"{row['positives']:,}",
                f"{row['predicted']:,}",
                *(_one(row[key]) for key in ("precision", "recall", "F1", "best_F1")),
                f"{row['threshold']:.2f}",
            ]
            for row in shown
        ],
    )
    return Section(
        "Labels",
        join(chart, tag("details", tag("summary", "As a table, with precision, recall and F1"), numbers)),
        "Best first. “images” have the label, “predicted” were given it; “best F1” is the F1 at the best threshold for "
        f"these images. All labels are in labels.csv.{note}",
    )


def label_rows(run: MeasuredRun) -> list[dict[str, Any]]:
    """One row per label, in percent."""
    rows = run.evaluation.to_dict()["per_label"]
    for column, row in enumerate(rows):
        found = best_f1(run.values[:, column], run.targets[:, column])
        row["best_F1"] = None if math.isnan(found) else 100 * found
    return [dict(row) for row in rows]


def experts_section(run: MeasuredRun) -> Section | None:
    """Gate weights over the measured images (HSQ figure 5)."""
    if run.experts is None:
        return None
    return Section(
        "Experts",
        join(
            tag("ul", *(tag("li", sentence) for sentence in expert_words(run.experts))),
            tag("div", *expert_figures(run.experts), class_="wide-charts"),
        ),
        f"Mean gate weights over {run.experts.images:,} images. Labels with similar weights are next to each other.",
    )


def cost_section(run: MeasuredRun) -> Section:
    parts = [
        [name, count(one["parameters"]), count(one["macs"]), count(one["macs_without_attention"])]
        for name, one in run.complexity["parts"].items()
    ]
    whole = [
        tag("b", "total"),
        *(count(run.complexity[key]) for key in ("parameters", "macs", "macs_without_attention")),
    ]
    return Section(
        "Cost",
        table(["part", "parameters", "multiply-adds", "without attention products"], [*parts, whole]),
        f"For one image of {run.config.preprocessing.size} pixels. Papers that report FLOPs mostly mean multiply-adds; "
        f"in floating point operations it is {count(run.complexity['flops'])}.",
    )


def data_section(found: Inspection, run: MeasuredRun) -> Section:
    said = found.problems
    bad = run.evaluation.bad_images
    if bad:
        first = f"{bad[0].path} ({bad[0].reason})"
        said.insert(0, f"{len(bad)} of the measured images cannot be decoded and are left out, the first: {first}.")
    for names, words in (
        (run.evaluation.labels_not_in_data, "labels of the model are not in the data and are not measured"),
        (run.evaluation.labels_ignored, "labels of the data are unknown to the model and ignored"),
    ):
        if names:
            said.append(f"{len(names)} {words}: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}.")
    body = tag("ul", *(tag("li", line) for line in said)) if said else tag("p", "None found.")
    intro = (
        f"{found.images:,} images, {len(found.labels):,} labels, {found.mean_labels_per_image:.2f} labels per image; "
        f"{', '.join(f'{name} {number:,}' for name, number in found.splits.items() if name) or 'no splits'}."
    )
    return Section("Problems in the data", body, intro)


def _ends(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    if len(rows) <= SHOWN:
        return rows, ""
    half = SHOWN // 2
    return rows[:half] + rows[-half:], f" Shown: the {half} best and the {half} worst of {len(rows):,} labels."


def _one(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{value:.1f}"
