"""Expert use as charts, pages and files: figure 5 of the HSQ paper with clustered labels, and its change in training.

Widths are percentages of the page's width, so that the text keeps its size on any screen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from labelwise.analysis.experts import ExpertUse, Merge, evenness, leaf_order
from labelwise.core.arrays import Doubles
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write
from labelwise.reports.figures import check_can_draw, names_as_written
from labelwise.reports.html import Html, Section, tag, write_report
from labelwise.reports.overlay import COLDEST, heat_colour
from labelwise.reports.svg import cut, line_chart

_NAMES, _CELLS, _TREE = 22.0, 62.0, 14.0  # percent of the width: names, cells, and the tree behind them
_ROW = 18  # height in pixels
_SHOWN = 80  # rows: more names cannot be read
_LABELLED = 9  # columns that get a name: more would overlap on a phone
_IMAGE_FILES = (".png", ".pdf", ".svg")
_READING = (
    "Each cell is a mean gate weight, in log scale: the brighter, the more the label relies on the expert. s1, s2, … "
    "are shared by all labels; own is the label's own. The last row is the mean over the labels. The tree on the right "
    "joins labels that use the shared experts in a similar way; further right means less similar."
)


def expert_figures(use: ExpertUse) -> list[Html]:
    """A chart of the weights per layer; with a history, also of their change in training."""
    figures = [_layer(use, layer) for layer in range(use.layers)]
    if len(use.history) > 1:
        figures += [_loads_over_training(use, layer) for layer in range(use.layers)]
        figures.append(_evenness_over_training(use))
    return figures


def expert_words(use: ExpertUse) -> list[str]:
    """What the charts show, in sentences."""
    said = []
    for layer in range(use.layers):
        where = f"Layer {layer + 1}"
        shared = (
            f"evenness of the {use.shared_experts} shared experts {use.evenness(layer):.2f} (1: equal loads; "
            f"coefficient of variation {use.variation(layer):.0%}); "
            if use.shared_experts
            else ""
        )
        said.append(f"{where}: {shared}{use.own_share(layer):.0%} of the gate weight goes to the labels' own experts.")
        dead = use.dead(layer)
        listed = ", ".join(dead[:20]) + (f" and {len(dead) - 20} more" if len(dead) > 20 else "")
        said.append(f"{where}: {'dead experts: ' + listed if dead else 'no dead experts'}.")
        if use.shared_experts and len(use.names) > 1:
            pairs = ", ".join(f"{a} and {b} ({common:.0%})" for a, b, common in use.closest(layer, 5))
            said.append(f"{where}: the labels that share most of their experts are {pairs}.")
    return said


def _layer(use: ExpertUse, layer: int) -> Html:
    """Rows are labels, similar ones next to each other; the last row is the mean."""
    shown = most_particular(use, layer, _SHOWN)
    weights, names = use.weights[layer][shown], [use.names[row] for row in shown]
    part = ExpertUse(tuple(names), weights[None], use.shared_experts)
    tree = part.tree(0) if use.shared_experts and len(names) > 1 else []
    order = leaf_order(tree) if tree else list(range(len(names)))
    rows = np.concatenate([weights[order], use.load(layer)[None]])
    drawn = _cells(rows, [names[row] for row in order] + ["mean"], use.experts, last_apart=True)
    drawn += _branches(tree, order)
    title = f"Expert layer {layer + 1}: gate weight of each label and expert"
    if len(shown) < len(use.names):
        title += f" ({len(shown)} of {len(use.names)} labels, those furthest from the mean)"
    return _figure(title, drawn, len(rows) * _ROW + 6, rows, f"{len(names)} labels by {len(use.experts)} experts")


def most_particular(use: ExpertUse, layer: int, rows: int) -> list[int]:
    """The rows that are furthest from the mean row, in their own order; all if there are no more than `rows`."""
    furthest = np.argsort(-np.abs(use.weights[layer] - use.load(layer)).sum(axis=1), kind="stable")[:rows]
    return sorted(int(row) for row in furthest)


def _loads_over_training(use: ExpertUse, layer: int) -> Html:
    """Rows are epochs, every k-th if there are many; the last one is always shown."""
    step = math.ceil(len(use.history) / 40)
    kept = [entry for place, entry in enumerate(reversed(use.history)) if place % step == 0][::-1]
    rows = np.stack([weights[layer].mean(axis=0) for _, weights in kept])
    drawn = _cells(rows, [f"epoch {epoch}" for epoch, _ in kept], use.experts)
    title = f"Expert layer {layer + 1}: mean load after each epoch"
    return _figure(title, drawn, len(rows) * _ROW, rows, f"{len(kept)} epochs by {len(use.experts)} experts")


def _evenness_over_training(use: ExpertUse) -> Html:
    lines = {
        f"layer {layer + 1}": [
            (float(epoch), evenness(weights[layer].mean(axis=0)[: use.shared_experts]))
            for epoch, weights in use.history
        ]
        for layer in range(use.layers)
    }
    title = "Evenness of the shared experts (1: equal loads)"
    return line_chart(lines, title=title, x_label="epoch", y_label="evenness")


def _cells(rows: Doubles, names: Sequence[str], columns: Sequence[str], last_apart: bool = False) -> list[Html]:
    """A coloured cell per value [r, c] in log scale, with the names of rows on the left and of columns below."""
    low, high = log_range(rows)
    share = (np.log(np.maximum(rows, low)) - math.log(low)) / max(math.log(high / low), 1e-9)
    colours = heat_colour(COLDEST + (1 - COLDEST) * share)
    width = _CELLS / len(columns)
    drawn = []
    for row, name in enumerate(names):
        top = row * _ROW + (6 if last_apart and row == len(names) - 1 else 0)
        drawn.append(tag("text", cut(name, 13), tag("title", name), x=f"{_NAMES - 1}%", y=top + 13, class_="end name"))
        for column, expert in enumerate(columns):
            what = tag("title", f"{name}, {expert}: {rows[row, column]:.3g}")
            red, green, blue = (round(value) for value in colours[row, column])
            drawn.append(
                tag(
                    "rect",
                    what,
                    x=f"{_NAMES + column * width:.3f}%",
                    y=top,
                    width=f"{width:.3f}%",
                    height=_ROW - 1,
                    fill=f"rgb({red},{green},{blue})",
                )
            )
    below = len(names) * _ROW + (6 if last_apart else 0) + 14
    step = math.ceil(len(columns) / _LABELLED)
    for column, expert in enumerate(columns):
        # The last column, the labels' own expert, always has its name; one too close before it has none.
        if column == len(columns) - 1 or (column % step == 0 and column + step < len(columns)):
            drawn.append(tag("text", expert, x=f"{_NAMES + (column + 0.5) * width:.3f}%", y=below, class_="mid"))
    return drawn


def log_range(rows: Doubles) -> tuple[float, float]:
    """The range of the colours: from the smallest to the largest weight, at most a factor of a thousand.

    >>> log_range(np.array([0.5, 0.01])), log_range(np.array([0.8, 1e-9]))
    ((0.01, 0.5), (0.0008, 0.8))
    """
    high = float(rows.max())
    return max(float(rows.min()), high / 1000), high


def _branches(tree: Sequence[Merge], order: Sequence[int]) -> list[Html]:
    """The dendrogram on the right of the rows: two clusters join further right the less they share."""
    place = {thing: (row + 0.5) * _ROW for row, thing in enumerate(order)}
    reach = dict.fromkeys(order, 0.0)
    furthest = max((merge.distance for merge in tree), default=1.0) or 1.0
    start = _NAMES + _CELLS + 1
    drawn = []
    for number, merge in enumerate(tree, start=len(order)):
        right = merge.distance / furthest
        x = f"{start + right * _TREE:.3f}%"
        for side in (merge.left, merge.right):
            y = place[side]
            drawn.append(tag("line", x1=f"{start + reach[side] * _TREE:.3f}%", x2=x, y1=y, y2=y, stroke="var(--muted)"))
        what = tag("title", f"{1 - merge.distance:.0%} of their shared gate weights in common")
        drawn.append(tag("line", what, x1=x, x2=x, y1=place[merge.left], y2=place[merge.right], stroke="var(--muted)"))
        place[number], reach[number] = (place[merge.left] + place[merge.right]) / 2, right
    return drawn


def _figure(title: str, drawn: Sequence[Html], height: int, rows: Doubles, what: str) -> Html:
    low, high = log_range(rows)
    scale = tag("span", f"{low:.1g}", tag("i", class_="scale"), f"{high:.2g} (log scale)", class_="heat")
    drawing = tag("svg", *drawn, width="100%", height=height + 22, role="img", aria_label=f"{title}: {what}.")
    return tag("figure", tag("figcaption", tag("strong", title), scale), drawing, class_="chart bars")


def check_file(path: Path) -> None:
    """Raise an error for a file that cannot be written; called before the work, not after it."""
    if path.suffix.lower() not in (*_IMAGE_FILES, ".html", ".json"):
        raise LabelwiseError(f"cannot write into {str(path)!r}; name an .html, .json, .png, .pdf or .svg file")
    if path.suffix.lower() in _IMAGE_FILES:
        check_can_draw(path)


def write_experts(use: ExpertUse, path: Path) -> None:
    """Write expert use as .html, .json, .png, .pdf or .svg, by the file's name."""
    check_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".json":
        atomic_write(path, json.dumps(use.to_dict(), indent=1, ensure_ascii=False) + "\n")
    elif path.suffix.lower() == ".html":
        _write_page(use, path)
    else:
        _draw(use, path)


def _write_page(use: ExpertUse, path: Path) -> None:
    per_layer, over_training = expert_figures(use)[: use.layers], expert_figures(use)[use.layers :]
    sections = [
        Section("Summary", tag("ul", *(tag("li", sentence) for sentence in expert_words(use)))),
        Section("Gate weights", tag("div", *per_layer, class_="charts"), _READING),
    ]
    if over_training:
        intro = "Mean over the validation images after each epoch."
        sections.append(Section("During training", tag("div", *over_training, class_="charts"), intro))
    images = f"{use.images:,} images of {use.data}" if use.images else use.data
    write_report(path, title="Experts", lead=f"Mean gate weights over {images}.", sections=sections)


@names_as_written()
def _draw(use: ExpertUse, path: Path) -> None:
    """As in the paper: labels in the data's order, the mean below them, shared experts before the label's own."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    size = (max(5.0, 0.28 * len(use.experts)) + 2, (1.6 + 0.22 * (len(use.names) + 1)) * use.layers)
    figure = Figure(figsize=size, layout="constrained")
    for layer, axis in enumerate(figure.subplots(use.layers, 1, squeeze=False)[:, 0]):
        rows = np.concatenate([use.weights[layer], use.load(layer)[None]])
        low, high = log_range(rows)
        drawing = axis.imshow(rows, norm=LogNorm(low, max(high, low * 1.01)), cmap="inferno", aspect="auto")
        axis.set_yticks(range(len(rows)), [*use.names, "mean"], fontsize=8)
        axis.set_xticks(range(len(use.experts)), use.experts, fontsize=7, rotation=90)
        axis.axhline(len(use.names) - 0.5, color="white", linewidth=2)
        axis.set_title(f"expert layer {layer + 1}", fontsize=10)
        bar = figure.colorbar(drawing, ax=axis, label="gate weight", format="%g")  # the default is mathematics
        bar.ax.yaxis.set_minor_formatter(NullFormatter())
    figure.savefig(path, dpi=130)
