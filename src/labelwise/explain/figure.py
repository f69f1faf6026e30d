"""A picture and, label by label, where the model looked: the figure of `labelwise explain`."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelwise.figures import check_can_draw, names_as_written
from labelwise.prediction import Prediction
from labelwise.report.overlay import COLDEST, heat_colour, overlay

_COLUMNS = 3


@names_as_written()
def save_explanation(
    prediction: Prediction, maps: Mapping[str, NDArray[np.floating]], path: str | Path, what: str = ""
) -> None:
    """Draw the picture and a map [H, W] for each label into a .png, .pdf or .svg file. `what` the maps are stands
    below them. Needs matplotlib."""
    check_can_draw(Path(path))
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    scores, applies = prediction.all_scores, set(prediction.labels)
    picture = prediction.picture()
    columns = min(_COLUMNS, 1 + len(maps))
    rows = ceil((1 + len(maps)) / columns)
    height = 3.2 * picture.height / picture.width
    figure = Figure(figsize=(3.4 * columns, (min(height, 6.0) + 0.8) * rows + 0.6), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.set_axis_off()
    axes[0].imshow(picture)
    axes[0].set_title(Path(str(getattr(prediction.image, "filename", prediction.image))).name, fontsize=10)
    for axis, (label, values) in zip(axes[1:], maps.items(), strict=False):
        axis.imshow(overlay(picture, values, prediction.preprocessing))
        note = "" if label in applies else f"\nbelow its threshold {prediction.thresholds[label]:.2f}"
        axis.set_title(f"{label}  {scores[label]:.2f}{note}", fontsize=10)
    colours = ListedColormap(heat_colour(np.linspace(COLDEST, 1, 256)) / 255)
    bar = figure.colorbar(ScalarMappable(cmap=colours), ax=axes, orientation="horizontal", shrink=0.4, aspect=40)
    bar.set_ticks([0, 1], labels=["looked least", "looked most"], fontsize=9)
    bar.set_label(what, fontsize=9)
    figure.savefig(path, dpi=130)
