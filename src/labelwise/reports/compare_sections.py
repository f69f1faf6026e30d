"""The sections about several runs: which is better, in which labels, and whether the difference is significant."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from labelwise.analysis.comparison import Comparison, best_in, improved_pairs
from labelwise.analysis.measured import MeasuredRun
from labelwise.evaluation import Difference
from labelwise.reports.charts import Whisker, difference_chart, interval_chart, signed
from labelwise.reports.html import Html, Section, count, join, percent, table, tag, with_interval
from labelwise.reports.svg import line_chart, scatter_chart
from labelwise.training.recipe import short_key
from labelwise.training.settings import SEED, Line, differing, seed_groups

SHOWN = 30  # labels in a chart of differences: those that differ most
_CHARTS = 6  # runs that get a chart of their own


def runs_section(
    runs: Sequence[MeasuredRun], comparisons: Sequence[Comparison], settings: Sequence[Mapping[str, Any]]
) -> Section:
    reference = comparisons[0].reference
    gain = {comparison.run.name: comparison for comparison in comparisons}
    ends = [(run, run.evaluation.scores.mAP, run.evaluation.confidence["mAP"]) for run in runs]
    chart = interval_chart(
        [
            Whisker(run.name, 100 * value, 100 * found.low, 100 * found.high, series=number)
            for number, (run, value, found) in enumerate(ends, start=1)
        ],
        title="mAP with its 95% interval",
        note="The intervals of two runs may overlap although their paired difference below is significant.",
    )
    keys = [key for key in differing(settings) if key not in ("model.backbone", "model.head", "model.size")]
    rows = []
    for run, one in zip(runs, settings, strict=True):
        scores, confidence = run.evaluation.scores, run.evaluation.confidence
        comparison = gain.get(run.name)
        rows.append(
            [
                run.name,
                tag(
                    "span",
                    f"{run.run.head}, {run.config.backbone.name}, {run.config.preprocessing.size} px",
                    tag("small", _listed(one, keys)) if keys else None,
                ),
                with_interval(scores.mAP, confidence.get("mAP")),
                tag("span", "reference", class_="muted") if comparison is None else paired(comparison.metrics["mAP"]),
                with_interval(scores.at_thresholds.CF1, confidence.get("CF1")),
                with_interval(scores.at_thresholds.OF1, confidence.get("OF1")),
                tag("span", count(run.complexity["parameters"]), tag("small", count(run.complexity["macs"]))),
            ]
        )
    heads = ["run", "model", "mAP", "difference", "CF1", "OF1", "parameters, multiply-adds"]
    return Section(
        "Runs",
        join(chart, table(heads, rows, words=2)),
        f"Differences to {reference.name} on the same images, by paired bootstrap: both runs are measured on each of "
        f"{reference.evaluation.samples:,} samples of the images. ✓: significant, p < 0.05; ○: not significant. "
        "All settings are in runs.csv.",
    )


def paired(difference: Difference) -> Html:
    """+0.6 with its interval, and whether it is significant."""
    significant = difference.p < 0.05
    words = "significant" if significant else "not significant"
    low, high = signed(100 * difference.interval.low), signed(100 * difference.interval.high)
    mark = "\N{CHECK MARK}" if significant else "\N{WHITE CIRCLE}"
    sign = tag("b", mark, title=words, class_=words.replace(" ", "-"))
    value = f"{signed(100 * difference.value)} "
    return tag("span", value, sign, tag("span", words, class_="spoken"), tag("small", f"{low} to {high}"))


def seeds_section(runs: Sequence[MeasuredRun], settings: Sequence[Mapping[str, Any]]) -> Section | None:
    """Mean and standard deviation of runs that differ only in the seed."""
    groups = seed_groups(settings)
    if all(len(group) < 2 for group in groups):
        return None
    first = [settings[group[0]] for group in groups]
    keys = [key for key in differing(first) if key != SEED]
    rows = []
    for group, one in zip(groups, first, strict=True):
        values = [100 * runs[place].evaluation.scores.mAP for place in group]
        spread = f"{statistics.stdev(values):.2f}" if len(values) > 1 else "\N{EN DASH}"
        what = _listed(one, keys) or "all runs"
        ends = f"{min(values):.2f} to {max(values):.2f}"
        rows.append([what, str(len(values)), f"{statistics.mean(values):.2f}", spread, ends])
    return Section(
        "Over seeds",
        table(["settings", "runs", "mean mAP", "standard deviation", "lowest to highest"], rows),
        "Runs that differ only in the seed. Bootstrap intervals cover the choice of test images for one trained model; "
        "this table covers training it again.",
    )


def differences_section(comparisons: Sequence[Comparison]) -> Section:
    """Differences of average precision per label (HSQ section 4.3)."""
    charts = []
    for comparison in comparisons[:_CHARTS]:
        rows = [
            Whisker(label, 100 * d.value, 100 * d.interval.low, 100 * d.interval.high, found)
            for label, d, found in zip(comparison.run.labels, comparison.labels, comparison.significant, strict=True)
        ]
        shown = sorted(sorted(rows, key=lambda row: -abs(row.value))[:SHOWN], key=lambda row: -row.value)
        left_out = f" Shown: the {SHOWN} of {len(rows)} labels that differ most." if len(rows) > SHOWN else ""
        charts.append(
            difference_chart(
                shown,
                title=f"{comparison.run.name} minus {comparison.reference.name}, in points of AP",
                note=f"Filled bars: significant. Hollow bars: not significant. Lines: 95% intervals.{left_out}",
            )
        )
    more = f" Charts of the first {_CHARTS} runs; all are in differences.csv." if len(comparisons) > _CHARTS else ""
    return Section(
        "Differences by label",
        tag("div", *charts, class_="charts"),
        "Differences of average precision on the same images. Significance is corrected for the number of labels "
        f"(Benjamini-Hochberg, false discovery rate 5%).{more}",
    )


def improved_section(runs: Sequence[MeasuredRun], comparisons: Sequence[Comparison]) -> Section:
    """How many labels, and pairs of labels, improve."""
    best = {run.name: number for run, number in zip(runs, best_in(runs), strict=True)}
    rows = []
    for comparison in comparisons:
        better, worse = comparison.better, comparison.worse
        significant = len(comparison.significant_of(better))
        rows.append(
            [
                comparison.run.name,
                f"{len(better)}",
                f"{significant}",
                f"{len(worse)}",
                f"{len(comparison.significant_of(worse))}",
                f"{improved_pairs(len(better)):,}",
                f"{improved_pairs(significant):,}",
                f"{best[comparison.run.name]}",
            ]
        )
    reference = comparisons[0].reference
    heads = ["run", "better", "significant", "worse", "significant", "pairs improved", "significant", "best in"]
    pairs = improved_pairs(len(reference.labels))
    return Section(
        "Improved labels",
        table(heads, rows),
        f"Against {reference.name}. A label is better if its average precision is higher. A pair is improved if both "
        f"of its labels are better: k better labels make k (k - 1) / 2 improved pairs, of {pairs:,} (HSQ section 4.3). "
        "“significant” counts only significant differences. “best in”: labels in which no other run here is higher; "
        f"for {reference.name} it is {best[reference.name]}.",
    )


def settings_section(
    runs: Sequence[MeasuredRun], settings: Sequence[Mapping[str, Any]], swept: Mapping[str, Sequence[Line]]
) -> Section:
    """mAP against each varied setting and against the cost (HSQ figure 6 and table 1)."""
    charts = []
    for key, lines in swept.items():
        points = {
            line.name: [
                (value, 100 * statistics.mean(runs[place].evaluation.scores.mAP for place in places))
                for value, places in line.points.items()
            ]
            for line in lines
        }
        seeds = max(len(places) for line in lines for places in line.points.values())
        note = f"Mean of up to {seeds} seeds." if seeds > 1 else None
        name = "input size in pixels" if key == "model.size" else short_key(key)
        charts.append(
            line_chart(points, title=f"mAP against {name}", x_label=name, y_label="mAP", note=note, x_at_points=True)
        )
    cost = {run.name: (run.complexity["macs"] / 1e9, 100 * run.evaluation.scores.mAP) for run in runs}
    charts.append(
        scatter_chart(cost, title="mAP against cost", x_label="billions of multiply-adds per image", y_label="mAP")
    )
    return Section("Settings and cost", tag("div", *charts, class_="charts"))


def related_section(runs: Sequence[MeasuredRun], pairs: Sequence[tuple[int, int]], chosen: bool) -> Section:
    """Average precision of pairs of related labels (HSQ figures 3, 4 and 7)."""
    labels = runs[0].labels
    precision = {run.name: 100 * run.average_precision for run in runs}
    charts = []
    for a, b in pairs:
        points = {name: (float(ap[a]), float(ap[b])) for name, ap in precision.items()}
        title = f"{labels[a]} and {labels[b]}"
        charts.append(
            scatter_chart(points, title=title, x_label=f"AP of {labels[a]}", y_label=f"AP of {labels[b]}", least=1.0)
        )
    rows = [
        [f"{labels[a]} and {labels[b]}", *(f"{abs(ap[a] - ap[b]):.1f}" for ap in precision.values())] for a, b in pairs
    ]
    picker = tag(
        "figure",
        tag("figcaption", tag("strong", "Any two labels")),
        tag("label", "x axis ", tag("select")),
        tag("label", "y axis ", tag("select")),
        tag("svg", viewBox="0 0 440 300", role="img", aria_label="Average precision of two labels over the runs"),
        tag("p", class_="note"),
        class_="chart",
        id="choose-pair",
        hidden="",
    )
    how = (
        "The pairs were chosen by the user."
        if chosen
        else "The pairs are those that the reference run confuses most: where one label is present and the other is "
        "not, the other still has a high score."
    )
    return Section(
        "Related labels",
        join(
            tag("div", *charts, picker, class_="charts"),
            table(["absolute gap in points of AP", *precision], rows),
        ),
        f"Each point is a run; upper right is better. {how} A smaller gap means that a run treats both labels more "
        "equally.",
    )


def all_labels_section(runs: Sequence[MeasuredRun]) -> Section:
    labels = runs[0].labels
    rows: list[list[str | Html]] = []
    for n, label in enumerate(labels[:200]):
        values = [run.average_precision[n] for run in runs]
        best = max((value for value in values if value == value), default=None)
        cells = [tag("b", percent(float(v))) if v == best else percent(float(v)) for v in values]
        rows.append([label, f"{runs[0].evaluation.scores.tally.positives[n]:,}", *cells])
    more = f" The first 200 of {len(labels):,}; labels.csv has all." if len(labels) > 200 else ""
    return Section(
        "Average precision of every label",
        table(["label", "images", *(run.name for run in runs)], rows),
        f"The best run per label in bold.{more}",
    )


def _listed(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{short_key(key)} {_value(settings[key])}" for key in keys if key in settings)


def _value(value: Any) -> str:
    return "\N{EN DASH}" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
