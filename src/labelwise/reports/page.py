"""The report of runs: one page about a run, or a comparison of several, with JSON and CSV files beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from labelwise.analysis.advice import advise
from labelwise.analysis.comparison import compare, named_pairs, related_pairs
from labelwise.analysis.curves import PER_LABEL, CoOccurrence, Mistake, co_occurrence, worst_mistakes
from labelwise.analysis.experts import recorded_use
from labelwise.analysis.measured import MeasuredRun, common_labels, measure_runs, report_data, trained_on
from labelwise.analysis.quality import LabelIssue, label_issues
from labelwise.analysis.transfer import Transfer, negative_transfer
from labelwise.core.errors import LabelwiseError, counted, unknown_name
from labelwise.core.files import atomic_write, check_replaceable
from labelwise.core.tables import write_csv
from labelwise.data.inspection import FEW, Inspection, inspect
from labelwise.metrics.ranking import mean_over_labels
from labelwise.reports.charts import SERIES, SMALL, difference_chart
from labelwise.reports.compare_sections import compared
from labelwise.reports.expert_sections import expert_figures, expert_words
from labelwise.reports.html import Html, Script, part, render_sections, write_report
from labelwise.reports.overlay import thumbnail
from labelwise.reports.run_sections import (
    calibration_charts,
    curves,
    data_problems,
    issues_to_show,
    label_rows,
    prediction_cards,
    shown_labels,
    training_charts,
)
from labelwise.reports.terms import explained
from labelwise.training.run import Run, open_runs
from labelwise.training.settings import settings_of

PAGE, NUMBERS = "report.html", "report.json"
TABLES = tuple(f"{name}.csv" for name in ("runs", "differences", "labels", "mistakes", "cooccurrence", "label_issues"))


@dataclass(frozen=True)
class ReportOptions:
    """What a report shows: the arguments of `lw.report`, which describes them."""

    data: str | None = None
    split: str | None = None
    reference: str | None = None
    pairs: Sequence[str] = ()
    images: int = 12
    predictions: int = 0
    per_label_baseline: bool = False
    bootstrap: int = 1000
    batch_size: int = 32
    workers: int = 0
    progress: bool = True
    warn: Callable[[str], None] = lambda text: None


def runs_report(sources: Sequence[str | Path], out: str | Path, options: ReportOptions | None = None) -> Path:
    """Write a report.

    Args:
        sources: Run folders, model folders or hub ids.
        out: Folder for `report.html` and the files beside it.
        options: What the report shows.

    Returns:
        The page.
    """
    options, out = options or ReportOptions(), Path(out)
    runs = open_runs(sources)
    data = report_data(runs, options.data, options.split)
    seen = {run.name: trained_on(run, data.measured) for run in runs}
    _check(runs, options)  # before the work, not after it
    _claim(out)
    measured = measure_runs(
        runs,
        data.measured,
        out / "predictions",
        bootstrap=options.bootstrap,
        batch_size=options.batch_size,
        workers=options.workers,
        progress=options.progress,
    )
    # The one that the later sections are about.
    best = max(measured, key=lambda run: np.nan_to_num(run.evaluation.scores.mAP))
    warnings = _warnings(measured, seen)
    for text in warnings:
        options.warn(text)
    found = inspect(data.whole, decode=False)
    numbers: dict[str, Any] = {
        "labelwise": version("labelwise"),
        "data": {
            "source": data.measured.source,
            "split": data.split,
            "images": len(best.table),
            "problems": found.to_dict()["problems"],
        },
        "notes": warnings,
        "runs": [run.to_dict() for run in measured],
    }
    compared, script = _compared(measured, options, out, numbers) if len(measured) > 1 else ({}, None)
    # A run repeats the labels of images that it was trained on, right or wrong.
    issues = None if seen[best.name] else label_issues(best.scores, best.targets)
    advice = advise(best, None if options.data else _unmeasured(best, found), issues)
    about = {"runs": measured, "best": best, "advice": advice}
    sections = render_sections(
        "report.html",
        **about,
        options=options,
        inspection=found,
        problems=data_problems(found, best),
        recipes=_recipes(measured),
        issues=issues,
        few=FEW,
        **compared,
        **_in_depth(best, measured, issues, options, out, numbers),
    )
    atomic_write(out / NUMBERS, json.dumps(finite(numbers), indent=1, ensure_ascii=False) + "\n")
    return write_report(
        out / PAGE,
        title=measured[0].name if len(measured) == 1 else f"{len(measured)} runs compared",
        lead=explained(part("parts.html", "report_lead", **about, split=data.split, warnings=warnings)),
        sections=sections,
        footer=f"Written by labelwise {version('labelwise')}. All numbers are in {NUMBERS} and the CSV files.",
        contents=True,
        script=script,
    )


def _check(runs: Sequence[Run], options: ReportOptions) -> None:
    names = [run.name for run in runs]
    if options.reference is not None and options.reference not in names:
        raise unknown_name("run", options.reference, names)
    named_pairs(options.pairs, common_labels(runs))
    if len(runs) > 1 and options.bootstrap < 1:
        raise LabelwiseError("comparing runs needs bootstrap samples", options={"bootstrap": 1000})
    if options.per_label_baseline and not all(run.frozen for run in runs):
        raise LabelwiseError(
            "the per-label baseline needs runs that were trained with a frozen backbone; "
            f"{next(run.name for run in runs if not run.frozen)} was not"
        )


def _claim(out: Path) -> None:
    """Make the folder a report's; an error if it holds files with the names of a report's and belongs to none."""
    if out.exists() and not out.is_dir():
        raise LabelwiseError(f"{str(out)!r} is a file; a report needs a folder", options={"out": "report"})
    if (out / NUMBERS).exists():
        return check_replaceable(out / NUMBERS)
    if foreign := [name for name in (PAGE, *TABLES) if (out / name).exists()]:
        raise LabelwiseError(f"{str(out / foreign[0])!r} exists and belongs to no report; choose another folder")
    atomic_write(out / NUMBERS, json.dumps({"labelwise": version("labelwise")}, indent=1) + "\n")


def _compared(
    runs: list[MeasuredRun], options: ReportOptions, out: Path, numbers: dict[str, Any]
) -> tuple[dict[str, Any], Script]:
    """What the page shows about several runs."""
    reference = next((run for run in runs if run.name == options.reference), runs[0])
    comparisons = [compare(run, reference) for run in runs if run is not reference]
    settings = settings_of([run.run for run in runs])
    pairs = named_pairs(options.pairs, reference.labels) or related_pairs(reference.values, reference.targets)
    numbers["reference"] = reference.name
    numbers["comparisons"] = [comparison.to_dict() for comparison in comparisons]
    numbers["related_pairs"] = [[reference.labels[a], reference.labels[b]] for a, b in pairs]
    write_csv(out / "runs.csv", [run_row(run, one, settings) for run, one in zip(runs, settings, strict=True)])
    write_csv(
        out / "differences.csv",
        [
            {"run": c["run"], "reference": c["reference"], **{k: v for k, v in row.items() if k != "interval"}}
            | dict(zip(("low", "high"), row["interval"] or ("", ""), strict=True))
            for c in numbers["comparisons"]
            for row in c["labels"]
        ],
    )
    precision = [{"name": run.name, "ap": [_percent(ap) for ap in run.average_precision]} for run in runs]
    pair = list(pairs[0]) if pairs else [0, len(reference.labels) - 1]
    script = Script("pairs.js", {"labels": list(reference.labels), "runs": precision, "pair": pair})
    return compared(runs, comparisons, settings, pairs), script


def _unmeasured(run: MeasuredRun, found: Inspection) -> dict[str, int] | None:
    """Images with each label that were not measured: those that there are for training."""
    measured = dict(zip(run.labels, run.table.positives_per_label().tolist(), strict=True))
    rest = {one.label: one.present - measured[one.label] for one in found.labels if one.label in measured}
    return rest if any(rest.values()) else None


def _in_depth(
    run: MeasuredRun,
    runs: Sequence[MeasuredRun],
    issues: Sequence[LabelIssue] | None,
    options: ReportOptions,
    out: Path,
    numbers: dict[str, Any],
) -> dict[str, Any]:
    """What the page shows about the best run."""
    # In the order of all charts, so that each run keeps its colour; `run` is always among them.
    overlaid = [*runs[:SERIES]]
    if all(one is not run for one in overlaid):
        overlaid[-1] = run
    rows = {one.name: label_rows(one) for one in runs}
    write_csv(out / "labels.csv", [{"run": name, **row} for name, labels in rows.items() for row in labels])
    wrong, missed = (worst_mistakes(run, kind, options.images) for kind in ("false positive", "miss"))
    write_csv(out / "mistakes.csv", mistake_rows(run, [*wrong, *missed]))
    together = transfer = None
    if run.config.task == "multi-label" and len(run.labels) > 1:
        found = co_occurrence(run.targets, run.predicted)
        together = {"found": found, "names": [run.labels[n] for n in found.columns]}
        write_csv(out / "cooccurrence.csv", pair_rows(run, found))
    if issues is not None:
        write_csv(out / "label_issues.csv", issue_rows(run, issues), ISSUE_COLUMNS)
        numbers["label_issues"] = {"run": run.name, "entries": int((run.targets >= 0).sum()), "found": len(issues)}
    if options.per_label_baseline:
        transfer = negative_transfer(run, workers=options.workers, progress=options.progress)
        numbers["negative_transfer"] = transfer.to_dict(run.labels)
    history = recorded_use(run.run.folder) if run.run.folder and run.experts else None
    looking = (
        next((one for one in [run, *runs] if one.config.head.has_attention), None) if options.predictions else None
    )
    return {
        "looking": looking,
        "cards": looking and prediction_cards(looking, options.predictions, options.progress),
        "labels": shown_labels(rows[run.name]),
        "overlaid": overlaid,
        "curves": curves(run, overlaid),
        "small_axes": SMALL,
        "calibration_charts": calibration_charts(run),
        "together": together,
        "false_positives": wrong,
        "misses": missed,
        "thumbnail": thumbnail,
        "per_label": PER_LABEL,
        "issues_to_show": issues_to_show,
        "transfer": transfer,
        "transfer_chart": transfer and _transfer_chart(run, transfer),
        "mean_over_labels": mean_over_labels,
        "experts": run.experts and replace(run.experts, history=history.history if history else ()),
        "expert_words": expert_words,
        "expert_figures": expert_figures,
        "training_charts": training_charts(overlaid),
    }


def _transfer_chart(run: MeasuredRun, found: Transfer) -> Html:
    title = f"{run.name} minus one model per label"
    return difference_chart(run.labels, found.differences, found.significant, title=title, shown=len(run.labels))


def _warnings(runs: Sequence[MeasuredRun], seen: Mapping[str, int | None]) -> list[str]:
    """What limits the numbers."""
    said = []
    for run in runs:
        if seen[run.name]:
            said.append(f"{run.name} was trained on {seen[run.name]:,} of these images: its numbers are optimistic.")
        if run.evaluation.too_many_labels:
            said.append(f"{run.name}: {run.evaluation.too_many_labels}.")
        left_out = len(run.run.config.labels) - len(run.labels)
        if left_out:
            said.append(f"left out: {counted(left_out, 'label')} of {run.name} that not all runs have.")
    bad = runs[0].evaluation.bad_images
    if bad:
        first = f"{bad[0].path} ({bad[0].reason})"
        said.append(f"left out: {counted(len(bad), 'image')} that cannot be decoded, the first: {first}.")
    return said


def _recipes(runs: Sequence[MeasuredRun]) -> dict[str, str]:
    return {
        run.name: yaml.safe_dump(run.run.recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        for run in runs
        if run.run.recipe is not None
    }


def run_row(run: MeasuredRun, settings: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row of runs.csv: metrics in percent, costs, and all settings that any of the runs has."""
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
    """The rows of cooccurrence.csv, as fractions."""
    names = [run.labels[n] for n in found.columns]
    return [
        {"given": a, "also": b, "truth": found.truth[i, j], "predicted": found.predicted[i, j]}
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        if i != j
    ]


def mistake_rows(run: MeasuredRun, mistakes: Sequence[Mistake]) -> list[dict[str, Any]]:
    """The rows of mistakes.csv."""
    return [
        {
            "run": run.name,
            "image": m.image,
            "label": m.label,
            "mistake": m.kind,
            "score": f"{m.score:.6f}",
            "threshold": f"{m.threshold:.6f}",
            "labelled": "|".join(m.present),
        }
        for m in mistakes
    ]


ISSUE_COLUMNS = ("image", "label", "given", "probably", "trust", "labelled")


def issue_rows(run: MeasuredRun, issues: Sequence[LabelIssue]) -> list[dict[str, Any]]:
    """The rows of label_issues.csv."""
    return [
        {
            "image": run.table.images[issue.row],
            "label": run.labels[issue.column],
            "given": "present" if issue.kind == "wrong" else "absent",
            "probably": issue.kind,
            "trust": f"{issue.trust:.6f}",
            "labelled": "|".join(run.table.present(issue.row)),
        }
        for issue in issues
    ]


def finite(value: Any) -> Any:
    """`value` with None for NaN, which JSON does not have.

    >>> finite({"a": [1.0, math.nan]})
    {'a': [1.0, None]}
    """
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _percent(fraction: float) -> float | None:
    return None if math.isnan(fraction) else round(100 * float(fraction), 3)
