"""An evaluation as tables for the terminal, from what `Evaluation.as_dict` gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.markup import escape
from rich.table import Table

_HEADLINE = ("mAP", "CP", "CR", "CF1", "OP", "OR", "OF1")
_LABELS_SHOWN = 100


def headline_table(result: dict[str, Any]) -> Table:
    confidence = result["confidence"]
    title = f"percent, with {confidence['level']:.0f} % intervals of {confidence['samples']:,} samples"
    table = Table("", title=title if confidence["samples"] else "percent", box=None, title_justify="left")
    kinds = [("at thresholds", "")] + [(f"top {k}", f"_top{k}") for k in (1, 3, 5) if f"CP_top{k}" in result]
    has_accuracy = result["model"]["task"] == "single-label"
    for kind, _ in kinds:
        table.add_column(kind, justify="right")
    for name in (*_HEADLINE, *(["accuracy"] if has_accuracy else [])):
        cells = [
            f"{_number(result[name + suffix])} {_interval(confidence.get(name + suffix))}".strip()
            if name + suffix in result
            else ""
            for _, suffix in kinds
        ]
        table.add_row(name, *cells)
    return table


def label_table(result: dict[str, Any]) -> Table:
    table = Table("label", box=None)
    counts = ["positives", "predicted", *(["known"] if result["unknown_entries"] else [])]
    for column in ("AP", "precision", "recall", "F1", "threshold", *counts):
        table.add_column(column, justify="right", no_wrap=True)
    rows = result["per_label"]
    if len(rows) > _LABELS_SHOWN:
        ranked = sorted(rows, key=lambda row: -1.0 if row["AP"] is None else row["AP"], reverse=True)
        rows = ranked[: _LABELS_SHOWN // 2] + ranked[-_LABELS_SHOWN // 2 :]
        table.caption = f"the {_LABELS_SHOWN // 2} best and worst of {len(ranked):,} by AP; --json has all"
    for row in rows:
        percentages = [_number(row[name]) for name in ("AP", "precision", "recall", "F1")]
        table.add_row(
            escape(row["label"]), *percentages, f"{row['threshold']:.3f}", *(f"{row[name]:,}" for name in counts)
        )
    return table


def notes(result: dict[str, Any]) -> Iterator[str]:
    """What the numbers rest on, as far as it is not plain: calibration, what was left out, skipped pictures."""
    ece = result["ece"]
    calibration = f"ECE {_number(ece['before'])} without calibration"
    if result["temperature"] != 1 or result["offset"]:
        calibration += f", {_number(ece['after'])} with the model's"
    yield calibration
    for count, text in (
        (result["labels_without_positives"], "labels without a known positive, left out of mAP, CP and CR"),
        (result["labels_never_predicted"], "labels that are never predicted, precision 0 in CP"),
        (len(result["labels_not_in_data"]), "labels of the model that the data lacks, unknown in every image"),
        (len(result["labels_ignored"]), "labels of the data that the model lacks, ignored"),
        (result["unknown_entries"], "unknown values, counted nowhere"),
        (len(result["bad_images"]), "images that cannot be decoded, skipped"),
    ):
        if count:
            yield f"{text}: {count:,}"
    for bad in result["bad_images"][:5]:
        yield f"  {bad['path']} ({bad['reason']})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _interval(bounds: list[float] | None) -> str:
    return "" if bounds is None else f"({bounds[0]:.1f} to {bounds[1]:.1f})"
