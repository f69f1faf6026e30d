"""Figures that matplotlib draws: the statistics of a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labelwise.core.errors import LabelwiseError, counted, missing_extra
from labelwise.core.files import WRITTEN_BY, check_replaceable
from labelwise.data.inspection import Inspection

_LABELS_SHOWN = 40  # of a dataset: more names cannot be read


def check_can_draw(path: Path) -> None:
    """Raise an error if nothing can be drawn into this file; called before the work, not after it."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise LabelwiseError(f"cannot draw into {str(path)!r}; name a .png, .pdf or .svg file")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise missing_extra("matplotlib", "plots") from None
    check_replaceable(path)


@contextmanager
def names_as_written() -> Iterator[None]:
    """Turn off matplotlib's mathematics, which labels such as `US$ and A$` would trigger. Also a decorator."""
    try:
        import matplotlib
    except ImportError:
        raise missing_extra("matplotlib", "plots") from None
    with matplotlib.rc_context({"text.parse_math": False}):
        yield


@names_as_written()
def save_inspection(report: Inspection, path: str | Path) -> None:
    """Draw the frequency of labels, labels per image, and which labels occur together, as a .png, .pdf or .svg."""
    check_can_draw(Path(path))
    from matplotlib.figure import Figure

    counts = sorted(report.labels, key=lambda count: -count.present)[:_LABELS_SHOWN]
    figure = Figure(figsize=(13, max(5.0, 1.5 + 0.2 * len(counts))), layout="constrained")
    labels_axis, right = figure.subplots(1, 2, width_ratios=[1.2, 1], squeeze=True)
    names = [count.label for count in counts]
    left = [0] * len(counts)
    for split in report.splits:
        width = [count.per_split.get(split, count.present) for count in counts]
        labels_axis.barh(names, width, left=left, label=split or None)
        left = [a + b for a, b in zip(left, width, strict=True)]
    labels_axis.invert_yaxis()
    more = f" (the {_LABELS_SHOWN} most frequent of {len(report.labels)})" if len(report.labels) > _LABELS_SHOWN else ""
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
    pairs.set(xlabel="ratio to chance", title="Labels that occur together, and that do not")
    figure.suptitle(f"{report.source}: {counted(report.images, 'image')}, {counted(len(report.labels), 'label')}")
    figure.savefig(path, dpi=110, metadata={"Title": WRITTEN_BY})
