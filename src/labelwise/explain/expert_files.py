"""Expert use as a file: a page, a picture like the paper's figure 5, or JSON."""

from __future__ import annotations

import json
from pathlib import Path

from labelwise.errors import LabelwiseError
from labelwise.explain.expert_charts import expert_figures, expert_words, log_range
from labelwise.explain.experts import ExpertUse
from labelwise.figures import check_can_draw, names_as_written
from labelwise.report.html import tag
from labelwise.report.page import Section, write_report

_PICTURES = (".png", ".pdf", ".svg")

_READING = (
    "Each cell is a gate's weight, the mean over the images, in log scale: the brighter, the more the label relies on "
    "that expert. s1, s2, … are shared by all labels; own is each label's own. The last row is the mean over the "
    "labels. The tree on the right joins labels that mix the shared experts alike; further right means less alike."
)


def check_file(path: Path) -> None:
    """Say what is wrong with the file's name before minutes are spent on it."""
    if path.suffix.lower() not in (*_PICTURES, ".html", ".json"):
        raise LabelwiseError(f"cannot write into {str(path)!r}; name an .html, .json, .png, .pdf or .svg file")
    if path.suffix.lower() in _PICTURES:
        check_can_draw(path)


def write_experts(use: ExpertUse, path: Path) -> None:
    """What is written follows from the file's name."""
    check_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".json":
        path.write_text(json.dumps(use.as_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    elif path.suffix.lower() == ".html":
        _write_page(use, path)
    else:
        _draw(use, path)


def _write_page(use: ExpertUse, path: Path) -> None:
    per_layer, over_training = expert_figures(use)[: use.layers], expert_figures(use)[use.layers :]
    sections = [
        Section("In words", tag("ul", *(tag("li", sentence) for sentence in expert_words(use)))),
        Section("Who relies on whom", tag("div", *per_layer, class_="charts"), _READING),
    ]
    if over_training:
        intro = "Averaged over the validation images, after each epoch of the training."
        sections.append(Section("How it came about", tag("div", *over_training, class_="charts"), intro))
    images = f"{use.images:,} images of {use.data}" if use.images else use.data
    write_report(path, title="Experts", lead=f"Mean gate weights over {images}.", sections=sections)


@names_as_written()
def _draw(use: ExpertUse, path: Path) -> None:
    """The paper's arrangement: labels in the data's order, the mean below them, shared experts before the own one."""
    import numpy as np
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    size = (max(5.0, 0.28 * len(use.experts)) + 2, (1.6 + 0.22 * (len(use.names) + 1)) * use.layers)
    figure = Figure(figsize=size, layout="constrained")
    for layer, axis in enumerate(figure.subplots(use.layers, 1, squeeze=False)[:, 0]):
        rows = np.concatenate([use.weights[layer], use.load(layer)[None]])
        low, high = log_range(rows)
        picture = axis.imshow(rows, norm=LogNorm(low, max(high, low * 1.01)), cmap="inferno", aspect="auto")
        axis.set_yticks(range(len(rows)), [*use.names, "mean"], fontsize=8)
        axis.set_xticks(range(len(use.experts)), use.experts, fontsize=7, rotation=90)
        axis.axhline(len(use.names) - 0.5, color="white", linewidth=2)
        axis.set_title(f"expert layer {layer + 1}", fontsize=10)
        bar = figure.colorbar(picture, ax=axis, label="gate weight", format="%g")  # its own would be mathematics
        bar.ax.yaxis.set_minor_formatter(NullFormatter())
    figure.savefig(path, dpi=130)
