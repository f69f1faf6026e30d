"""The picture of a dataset report."""

from __future__ import annotations

from pathlib import Path

from labelwise.data.inspect import Report
from labelwise.figures import check_can_draw, names_as_written

_SHOWN = 40  # labels: more names cannot be read


@names_as_written()
def save_picture(report: Report, path: str | Path) -> None:
    """Labels by frequency, labels per image, and which labels come together, as a PNG, PDF or SVG."""
    check_can_draw(Path(path))
    from matplotlib.figure import Figure

    counts = sorted(report.labels, key=lambda count: -count.present)[:_SHOWN]
    figure = Figure(figsize=(13, max(5.0, 1.5 + 0.2 * len(counts))), layout="constrained")
    labels_axis, right = figure.subplots(1, 2, width_ratios=[1.2, 1], squeeze=True)
    names = [count.label for count in counts]
    left = [0] * len(counts)
    for split in report.splits:
        width = [count.per_split.get(split, count.present) for count in counts]
        labels_axis.barh(names, width, left=left, label=split or None)
        left = [a + b for a, b in zip(left, width, strict=True)]
    labels_axis.invert_yaxis()
    more = f" (the {_SHOWN} most frequent of {len(report.labels)})" if len(report.labels) > _SHOWN else ""
    labels_axis.set(xlabel="images", title=f"Images per label{more}")
    if any(report.splits):
        labels_axis.legend()
    right.remove()
    grid = right.get_gridspec()[0, 1].subgridspec(2, 1)
    histogram, pairs = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    histogram.bar(list(report.images_by_label_count), list(report.images_by_label_count.values()), color="tab:gray")
    histogram.set(xlabel="labels", ylabel="images", title=f"Labels per image, mean {report.mean_labels_per_image:.2f}")
    shown = [*report.together[:6], *reversed(report.apart[:6])]
    colours = ["tab:green" if pair.lift > 1 else "tab:red" for pair in shown]
    pairs.barh([f"{pair.a} + {pair.b}" for pair in shown], [pair.lift for pair in shown], color=colours)
    pairs.axvline(1, color="black", linewidth=0.8)
    pairs.invert_yaxis()
    pairs.set(xlabel="times as often as by chance", title="Labels that attract and avoid each other")
    figure.suptitle(f"{report.source}: {report.images:,} images, {len(report.labels):,} labels")
    figure.savefig(path, dpi=110)
