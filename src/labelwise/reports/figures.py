"""Figures that matplotlib draws: attention maps of an image, and the statistics of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.core.errors import LabelwiseError, counted, missing_extra
from labelwise.data.inspection import Inspection
from labelwise.reports.overlay import COLDEST, heat_colour, overlay
from labelwise.runtime.prediction import Prediction

_COLUMNS = 3  # of an explanation
_LABELS_SHOWN = 40  # of a dataset: more names cannot be read


def check_can_draw(path: Path) -> None:
    """Raise an error if nothing can be drawn into this file; called before the work, not after it."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise LabelwiseError(f"cannot draw into {str(path)!r}; name a .png, .pdf or .svg file")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise missing_extra("matplotlib", "plots") from None


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
def save_explanation(
    prediction: Prediction, maps: Mapping[str, NDArray[np.floating]], path: str | Path, what: str = ""
) -> None:
    """Draw an image and a map for each label. Needs matplotlib.

    Args:
        prediction: What the model said about the image.
        maps: A map [H, W] per label.
        path: A .png, .pdf or .svg file.
        what: A caption that says what the maps are.
    """
    check_can_draw(Path(path))
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    scores, applies = prediction.all_scores, set(prediction.labels)
    image = prediction.open_image()
    columns = min(_COLUMNS, 1 + len(maps))
    rows = ceil((1 + len(maps)) / columns)
    height = 3.2 * image.height / image.width
    figure = Figure(figsize=(3.4 * columns, (min(height, 6.0) + 0.8) * rows + 0.6), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.set_axis_off()
    axes[0].imshow(image)
    axes[0].set_title(Path(str(getattr(prediction.image, "filename", prediction.image))).name, fontsize=10)
    for axis, (label, values) in zip(axes[1:], maps.items(), strict=False):
        axis.imshow(overlay(image, values, prediction.preprocessing))
        note = "" if label in applies else f"\nbelow its threshold {prediction.thresholds[label]:.2f}"
        axis.set_title(f"{label}  {scores[label]:.2f}{note}", fontsize=10)
    colours = ListedColormap(heat_colour(np.linspace(COLDEST, 1, 256)) / 255)
    bar = figure.colorbar(ScalarMappable(cmap=colours), ax=axes, orientation="horizontal", shrink=0.4, aspect=40)
    bar.set_ticks([0, 1], labels=["attended least", "attended most"], fontsize=9)
    bar.set_label(what, fontsize=9)
    figure.savefig(path, dpi=130)


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
    figure.savefig(path, dpi=110)
