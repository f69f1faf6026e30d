"""Evaluations as tables, for terminals and notebooks. A `result` is what an evaluation's `to_dict` gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labelwise.core.errors import counted
from labelwise.core.tables import TerminalTable, html_table
from labelwise.core.terminal import open_console

Result = dict[str, Any]
Cells = tuple[list[str], list[list[str]]]  # columns, and rows of a metric's name and its values

_HEADLINE = ("mAP", "CP", "CR", "CF1", "OP", "OR", "OF1")
_LABELS_SHOWN = 100
_ZERO_SHOT_LABELS_SHOWN = 30


def as_text(result: Result) -> str:
    """One line about what was measured, and the headline metrics."""
    console = open_console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(headline_table(result))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join([headline(result), *lines])


def as_html(result: Result) -> str:
    columns, rows = _headline_cells(result)
    return html_table(["", *columns], rows, f"{headline(result)}; {_units(result)}")


def headline(result: Result) -> str:
    """What was measured on what, in one line."""
    model, data = result["model"], result["data"]
    named = model.get("source", f"{model['head']} on {model['backbone']}")
    split = f" ({data['split']})" if "split" in data else ""
    labels = counted(result["labels"], "label") if "labels" in result else ""
    if "zsl" in result:
        unseen = result["zsl"]["labels"]
        labels = f"{counted(result['gzsl']['labels'] - unseen, 'label')} seen, {unseen:,} unseen"
    return f"{named} on {data['source']}{split}: {counted(result['images'], 'image')}, {labels}"


def headline_table(result: Result) -> TerminalTable:
    """Metrics over all labels, with their intervals."""
    columns, rows = _headline_cells(result)
    return TerminalTable(["", *columns], rows, title=_units(result))


def convention_table(result: Result) -> TerminalTable | None:
    """The metrics as other lines of work compute them; None if none was asked for."""
    if "conventions" not in result:
        return None
    conventions: dict[str, dict[str, float | None]] = result["conventions"]
    metrics = [metric.replace("_top", " top-") for metric in next(iter(conventions.values()))]
    rows = [[name, *map(_number, row.values())] for name, row in conventions.items()]
    title = "percent" if "zsl" in result else "at 0.5 on uncalibrated scores (percent)"
    return TerminalTable(["as", *metrics], rows, title=title)


def label_table(result: Result) -> TerminalTable:
    """Metrics and counts of every label of the data; of very many, the best and worst (zero-shot: the unseen ones)."""
    labels, caption = result["per_label"], None
    if "zsl" in result:
        return _zero_shot_label_table(labels)
    labels = [row for row in labels if row["known"]]  # `notes` counts those that the data does not have
    if len(labels) > _LABELS_SHOWN:
        caption = f"the {_LABELS_SHOWN // 2} best and worst of {len(labels):,} labels by AP"
        ranked = sorted(labels, key=lambda row: -1.0 if row["AP"] is None else row["AP"], reverse=True)
        labels = ranked[: _LABELS_SHOWN // 2] + ranked[-_LABELS_SHOWN // 2 :]
    metrics = ("AP", "precision", "recall", "F1")
    counts = ["positives", "predicted", *(["known"] if result["unknown_entries"] else [])]
    rows = [
        [
            row["label"],
            *(_number(row[name]) for name in metrics),
            f"{row['threshold']:.3f}",
            *(f"{row[name]:,}" for name in counts),
        ]
        for row in labels
    ]
    return TerminalTable(["label", *metrics, "threshold", *counts], rows, caption=caption)


def _zero_shot_label_table(labels: list[Result]) -> TerminalTable:
    many = f"{_ZERO_SHOT_LABELS_SHOWN} of {len(labels):,} labels" if len(labels) > _ZERO_SHOT_LABELS_SHOWN else None
    shown = sorted(labels, key=lambda row: not row["unseen"])[:_ZERO_SHOT_LABELS_SHOWN]
    rows = [
        [
            row["label"],
            "unseen" if row["unseen"] else "seen",
            _number(row["AP"]),
            _number(row["chance"]),
            f"{row['positives']:,}",
        ]
        for row in shown
    ]
    return TerminalTable(["label", "", "AP", "chance", "positives"], rows, caption=many, names=2)


def notes(result: Result) -> Iterator[str]:
    """What limits the numbers: calibration, labels and values that are left out, skipped images."""
    if "ece" in result:
        ece = result["ece"]
        calibration = f"ECE {_number(ece['before'])} without calibration"
        if result["temperature"] != 1 or result["offset"]:
            calibration += f", {_number(ece['after'])} with the model's"
        yield calibration
    totals, left_out, owner = result, "mAP, CP and CR", "the model does not have"
    if "zsl" in result:
        totals, left_out, owner = result["gzsl"], "mAP", "are neither seen nor unseen"
    not_in_data = result.get("labels_not_in_data", [])
    for count, text in (
        (totals["labels_without_positives"], f"labels without a known positive, left out of {left_out}"),
        (result.get("labels_never_predicted", 0), "labels that are never predicted, precision 0 in CP"),
        (len(not_in_data), "labels of the model that are missing in the data, unknown everywhere"),
        (len(result["labels_ignored"]), f"labels of the data that {owner}, ignored"),
        (result["unknown_entries"], "unknown values, counted nowhere"),
        (len(result["bad_images"]), "images that cannot be decoded, skipped"),
    ):
        if count:
            yield f"{text}: {count:,}"
    for bad in result["bad_images"][:5]:
        yield f"  {bad['path']} ({bad['reason']})"


def _units(result: Result) -> str:
    drawn = result if "zsl" in result else result["confidence"]
    intervals = f", with {drawn['level']:.0f} % intervals of {drawn['samples']:,} samples"
    return "percent" + (intervals if drawn["samples"] else "")


def _headline_cells(result: Result) -> Cells:
    if "zsl" in result:
        return _zero_shot_cells(result)
    confidence = result["confidence"]
    suffixes = {"at thresholds": ""} | {f"top {k}": f"_top{k}" for k in (1, 3, 5) if f"CP_top{k}" in result}
    names = (*_HEADLINE, *(["accuracy"] if result["model"]["task"] == "single-label" else []))
    keys = [[name + suffix for suffix in suffixes.values()] for name in names]
    rows = [
        [name, *(_number(result[key]) + _interval(confidence.get(key)) if key in result else "" for key in row)]
        for name, row in zip(names, keys, strict=True)
    ]
    return list(suffixes), rows


def _zero_shot_cells(result: Result) -> Cells:
    names = {"mAP": "mAP"} | {
        f"{short}_top{k}": f"{name} at {k}"
        for k in (1, 3, 5)
        for short, name in (("OP", "precision"), ("OR", "recall"), ("OF1", "F1"))
    }
    rows = []
    for key, name in names.items():
        cells: list[str] = []
        for part in (result["zsl"], result["gzsl"]):
            cells += [_number(part[key]) + _interval(part["confidence"].get(key)), _number(part["chance"][key])]
        rows.append([name, *cells])
    relative = result["zsl_relative"]
    rows.insert(1, ["mAP, relative", _number(relative["mAP"]), _number(relative["chance"]["mAP"]), "", ""])
    return ["unseen (ZSL)", "chance", "all (GZSL)", "chance"], rows


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _interval(bounds: list[float | None] | None) -> str:
    return "" if bounds is None or None in bounds else f" ({bounds[0]:.1f} to {bounds[1]:.1f})"
