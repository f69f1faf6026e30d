"""The report of runs: one page about a run, or a comparison of several, with JSON and CSV files beside it."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from labelwise.analysis.comparison import compare, named_pairs, related_pairs
from labelwise.analysis.curves import CoOccurrence, co_occurrence, worst_mistakes
from labelwise.analysis.experts import recorded_use
from labelwise.analysis.measured import MeasuredRun, common_labels, measure_runs, report_data, trained_on
from labelwise.analysis.quality import label_issues
from labelwise.analysis.transfer import negative_transfer
from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.core.files import atomic_write
from labelwise.data.inspection import inspect
from labelwise.reports import compare_sections as several
from labelwise.reports import curve_sections as curves
from labelwise.reports import image_sections
from labelwise.reports import run_sections as single
from labelwise.reports.html import Html, Script, Section, join, percent, tag, write_report
from labelwise.reports.svg import SERIES
from labelwise.training.run import Run, open_runs
from labelwise.training.settings import settings_of, sweeps

PAGE, NUMBERS = "report.html", "report.json"
_OVERLAID = SERIES  # runs in one chart of curves: as many as there are colours


@dataclass(frozen=True)
class ReportOptions:
    """What a report shows.

    Attributes:
        data: The dataset to measure on; None for the data of the runs.
        split: The images to measure on; None for `test`, else `val`.
        reference: The name of the run that the others are compared with; None for the first.
        pairs: Pairs of labels to compare, such as `cow,horse`.
        images: How many of the worst mistakes of each kind to show.
        predictions: How many images to show with their predictions and attention maps.
        quality: Whether to look for labels that are probably wrong or missing.
        per_label_baseline: Whether to look for negative transfer.
        bootstrap: Bootstrap samples for intervals and comparisons.
        batch_size: Images per batch.
        workers: Processes that decode images.
        progress: Whether to show progress.
        warn: Called with what limits the numbers.
    """

    data: str | None = None
    split: str | None = None
    reference: str | None = None
    pairs: Sequence[str] = ()
    images: int = 12
    predictions: int = 0
    quality: bool = False
    per_label_baseline: bool = False
    bootstrap: int = 1000
    batch_size: int = 32
    workers: int = 2
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
    _check(runs, seen, options)  # before the work, not after it
    measured = measure_runs(
        runs,
        data.measured,
        out / "predictions",
        bootstrap=options.bootstrap,
        batch_size=options.batch_size,
        workers=options.workers,
        progress=options.progress,
    )
    out.mkdir(parents=True, exist_ok=True)
    best = max(
        measured, key=lambda run: np.nan_to_num(run.evaluation.scores.mAP)
    )  # the one that the later sections are about
    warnings = _warnings(measured, seen)
    for text in warnings:
        options.warn(text)
    numbers: dict[str, Any] = {
        "labelwise": version("labelwise"),
        "data": {"source": data.measured.source, "split": data.split, "images": len(best.table)},
        "notes": warnings,
        "runs": [run.to_dict() for run in measured],
    }
    sections: list[Section | None] = []
    looking = next((run for run in [best, *measured] if run.config.head.has_attention), None)
    if options.predictions and looking is not None:
        sections.append(image_sections.predictions_section(looking, options.predictions, options.progress))
    script = None
    if len(measured) > 1:
        compared, script = _compared(measured, options, out, numbers)
        sections += compared
    sections += _in_depth(best, measured, options, out, numbers)
    found = inspect(data.whole, decode=False)
    sections += [single.data_section(found, best), _recipes(measured)]
    numbers["data"]["problems"] = found.to_dict()["problems"]
    write_csv(out / "labels.csv", [{"run": run.name, **row} for run in measured for row in single.label_rows(run)])
    atomic_write(out / NUMBERS, json.dumps(finite(numbers), indent=1, ensure_ascii=False) + "\n")
    return write_report(
        out / PAGE,
        title=measured[0].name if len(measured) == 1 else f"{len(measured)} runs compared",
        lead=join(_lead(measured, best, data.split), *(tag("p", text, class_="warning") for text in warnings)),
        sections=[section for section in sections if section is not None],
        footer=f"Written by labelwise {version('labelwise')}. All numbers are in {NUMBERS} and the CSV files.",
        contents=True,
        script=script,
    )


def _check(runs: Sequence[Run], seen: Mapping[str, int | None], options: ReportOptions) -> None:
    names = [run.name for run in runs]
    if options.reference is not None and options.reference not in names:
        raise unknown_name("run", options.reference, names)
    named_pairs(options.pairs, common_labels(runs))
    if len(runs) > 1 and options.bootstrap < 1:
        raise LabelwiseError("comparing runs needs bootstrap samples", options={"bootstrap": 1000})
    trained = [name for name in names if seen[name]]
    if options.quality and trained:
        raise LabelwiseError(
            f"{trained[0]} was trained on {seen[trained[0]]:,} of these images and repeats their labels, right or "
            "wrong; look for label errors in images that it was not trained on",
            options={"split": "test"},
        )
    if options.per_label_baseline and not all(run.frozen for run in runs):
        raise LabelwiseError(
            "the per-label baseline needs runs that were trained with a frozen backbone; "
            f"{next(run.name for run in runs if not run.frozen)} was not"
        )


def _compared(
    runs: list[MeasuredRun], options: ReportOptions, out: Path, numbers: dict[str, Any]
) -> tuple[list[Section | None], Script]:
    reference = next((run for run in runs if run.name == options.reference), runs[0])
    comparisons = [compare(run, reference) for run in runs if run is not reference]
    settings = settings_of([run.run for run in runs])
    chosen = named_pairs(options.pairs, reference.labels)
    pairs = chosen or related_pairs(reference.values, reference.targets)
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
    sections = [
        several.runs_section(runs, comparisons, settings),
        several.seeds_section(runs, settings),
        several.differences_section(comparisons),
        several.improved_section(runs, comparisons),
        several.related_section(runs, pairs, bool(chosen)) if len(reference.labels) > 1 else None,
        several.settings_section(runs, settings, sweeps(settings)),
        several.all_labels_section(runs),
    ]
    precision = [{"name": run.name, "ap": [_percent(ap) for ap in run.average_precision]} for run in runs]
    pair = list(pairs[0]) if pairs else [0, len(reference.labels) - 1]
    return sections, Script("pairs.js", {"labels": list(reference.labels), "runs": precision, "pair": pair})


def _in_depth(
    run: MeasuredRun, runs: Sequence[MeasuredRun], options: ReportOptions, out: Path, numbers: dict[str, Any]
) -> list[Section | None]:
    alone = len(runs) == 1
    # In the order of all charts, so that each run keeps its colour; `run` is always among them.
    overlaid = [*runs[:_OVERLAID]]
    if all(one is not run for one in overlaid):
        overlaid[-1] = run
    wrong = worst_mistakes(run, "false positive", options.images)
    missed = worst_mistakes(run, "miss", options.images)
    write_csv(out / "mistakes.csv", image_sections.mistake_rows(run, [*wrong, *missed]))
    sections: list[Section | None] = [
        single.numbers_section(run) if alone else None,
        single.labels_section(run) if alone else None,
        curves.curves_section(run, overlaid),
        curves.calibration_section(run),
    ]
    if run.config.task == "multi-label" and len(run.labels) > 1:
        found = co_occurrence(run.targets, run.predicted)
        write_csv(out / "cooccurrence.csv", pair_rows(run, found))
        sections.append(curves.together_section(run, found))
    sections.append(image_sections.mistakes_section(run, wrong, missed))
    if options.quality:
        issues = label_issues(run.scores, run.targets)
        write_csv(out / "label_issues.csv", image_sections.issue_rows(run, issues))
        numbers["label_issues"] = {"run": run.name, "entries": int((run.targets >= 0).sum()), "found": len(issues)}
        sections.append(image_sections.quality_section(run, issues, options.images))
    if options.per_label_baseline:
        transfer = negative_transfer(run, workers=options.workers, progress=options.progress)
        numbers["negative_transfer"] = transfer.to_dict(run.labels)
        sections.append(image_sections.transfer_section(run, transfer))
    history = recorded_use(run.run.folder) if run.run.folder and run.experts else None
    if run.experts and history:
        run = replace(run, experts=replace(run.experts, history=history.history))
    return [*sections, single.experts_section(run), curves.training_section(overlaid), single.cost_section(run)]


def _warnings(runs: Sequence[MeasuredRun], seen: Mapping[str, int | None]) -> list[str]:
    """What limits the numbers."""
    said = []
    for run in runs:
        if seen[run.name]:
            said.append(f"{run.name} was trained on {seen[run.name]:,} of these images: its numbers are optimistic.")
        left_out = len(run.run.config.labels) - len(run.labels)
        if left_out:
            said.append(f"{left_out} labels of {run.name} are left out: not all runs have them.")
    bad = runs[0].evaluation.bad_images
    if bad:
        first = f"{bad[0].path} ({bad[0].reason})"
        said.append(f"{len(bad):,} images cannot be decoded and are left out, the first: {first}.")
    return said


def _lead(runs: Sequence[MeasuredRun], best: MeasuredRun, split: str) -> Html:
    if len(runs) == 1:
        return single.headline(best, split)
    images, labels = len(best.table), len(best.labels)
    sentence = (
        f"On {images:,} images ({split}) of {best.table.source or 'the data'} with {labels:,} labels, {best.name} has "
        f"the highest mAP, {percent(best.evaluation.scores.mAP)}. The sections from “Precision-recall curves” on are "
        "about this run."
    )
    return tag("p", sentence, class_="lead")


def _recipes(runs: Sequence[MeasuredRun]) -> Section | None:
    written = []
    for run in runs:
        if run.run.recipe is not None:
            text = yaml.safe_dump(run.run.recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
            written.append(tag("details", tag("summary", run.name), tag("pre", text)))
    if not written:
        return None
    return Section(
        "Recipes",
        join(*written),
        "Saved as a file, each trains its run again: labelwise train --recipe FILE.",
    )


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV; without rows an empty file, so that nothing of an earlier report remains."""
    with path.open("w", encoding="utf-8", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


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
