"""Expert use as charts, pages and files: figure 5 of the HSQ paper with clustered labels, and its change in training.

Widths are percentages of the page's width, so that the text keeps its size on any screen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.analysis.experts import ExpertUse, Merge, evenness, leaf_order
from labelwise.core.arrays import Doubles
from labelwise.core.errors import LabelwiseError, counted
from labelwise.core.files import WRITTEN_BY, atomic_write, check_replaceable
from labelwise.reports.charts import line_chart
from labelwise.reports.figures import check_can_draw, names_as_written
from labelwise.reports.html import Html, part, render_sections, write_report
from labelwise.reports.overlay import COLDEST, heat_colour

_NAMES, _CELLS, _TREE = 22.0, 62.0, 14.0  # percent of the width: names, cells, and the tree behind them
_ROW = 18  # height in pixels
_SHOWN = 80  # rows: more names cannot be read
_LABELLED = 9  # columns that get a name: more would overlap on a phone
_IMAGE_FILES = (".png", ".pdf", ".svg")


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
    rest = ExpertUse(tuple(names), weights[None], use.shared_experts)
    tree = rest.tree(0) if use.shared_experts and len(names) > 1 else []
    order = leaf_order(tree) if tree else list(range(len(names)))
    rows = np.concatenate([weights[order], use.load(layer)[None]])
    title = f"Expert layer {layer + 1}: gate weight of each label and expert"
    if len(shown) < len(use.names):
        title += f" ({len(shown)} of {len(use.names)} labels, those furthest from the mean)"
    what = f"{len(names)} labels by {len(use.experts)} experts"
    return _cells(title, what, rows, [*(names[row] for row in order), "mean"], use.experts, _branches(tree, order), 6)


def most_particular(use: ExpertUse, layer: int, rows: int) -> list[int]:
    """The rows that are furthest from the mean row, in their own order; all if there are no more than `rows`."""
    furthest = np.argsort(-np.abs(use.weights[layer] - use.load(layer)).sum(axis=1), kind="stable")[:rows]
    return sorted(int(row) for row in furthest)


def _loads_over_training(use: ExpertUse, layer: int) -> Html:
    """Rows are epochs, every k-th if there are many; the last one is always shown."""
    step = math.ceil(len(use.history) / 40)
    kept = [entry for place, entry in enumerate(reversed(use.history)) if place % step == 0][::-1]
    rows = np.stack([weights[layer].mean(axis=0) for _, weights in kept])
    title = f"Expert layer {layer + 1}: mean load after each epoch"
    what = f"{len(kept)} epochs by {len(use.experts)} experts"
    return _cells(title, what, rows, [f"epoch {epoch}" for epoch, _ in kept], use.experts)


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


def _cells(
    title: str,
    what: str,
    values: Doubles,
    names: Sequence[str],
    columns: Sequence[str],
    tree: Sequence[dict[str, Any]] = (),
    gap: int = 0,
) -> Html:
    """A coloured cell per value [r, c] in log scale, with the names of rows on the left and of columns below.

    `gap` sets the last row apart.
    """
    low, high = log_range(values)
    share = (np.log(np.maximum(values, low)) - math.log(low)) / max(math.log(high / low), 1e-9)
    colours = heat_colour(COLDEST + (1 - COLDEST) * share).round().astype(int)  # [r, c, 3]
    tops = [row * _ROW + (gap if row == len(names) - 1 else 0) for row in range(len(names))]
    cells = [list(zip(*row, strict=True)) for row in zip(values, colours.tolist(), strict=True)]
    step, last = math.ceil(len(columns) / _LABELLED), len(columns) - 1
    heads = [
        # The last column, the labels' own expert, always has its name; one too close before it has none.
        (name, _NAMES + _CELLS * n / len(columns), n == last or (n % step == 0 and n + step <= last))
        for n, name in enumerate(columns)
    ]
    height = len(names) * _ROW + gap
    about = {"title": title, "what": what, "low": low, "high": high}
    return part(
        "charts.html",
        "expert_cells",
        rows=list(zip(names, tops, cells, strict=True)),
        columns=heads,
        height=height,
        tree=tree,
        **about,
    )


def log_range(rows: Doubles) -> tuple[float, float]:
    """The range of the colours: from the smallest to the largest weight, at most a factor of a thousand.

    >>> log_range(np.array([0.5, 0.01])), log_range(np.array([0.8, 1e-9]))
    ((0.01, 0.5), (0.0008, 0.8))
    """
    high = float(rows.max())
    return max(float(rows.min()), high / 1000), high


def _branches(tree: Sequence[Merge], order: Sequence[int]) -> list[dict[str, Any]]:
    """The dendrogram on the right of the rows: two clusters join further right the less they share."""
    start = _NAMES + _CELLS + 1
    ends = {item: ((row + 0.5) * _ROW, start) for row, item in enumerate(order)}  # y in pixels, x in percent
    furthest = max((merge.distance for merge in tree), default=1.0) or 1.0
    branches = []
    for number, merge in enumerate(tree, start=len(order)):
        sides, x = [ends[merge.left], ends[merge.right]], start + _TREE * merge.distance / furthest
        words = f"{1 - merge.distance:.0%} of their shared gate weights in common"
        branches.append({"sides": sides, "x": x, "words": words})
        ends[number] = (sides[0][0] + sides[1][0]) / 2, x
    return branches


def check_file(path: Path) -> None:
    """Raise an error for a file that cannot be written; called before the work, not after it."""
    if path.suffix.lower() not in (*_IMAGE_FILES, ".html", ".json"):
        raise LabelwiseError(f"cannot write into {str(path)!r}; name an .html, .json, .png, .pdf or .svg file")
    if path.suffix.lower() in _IMAGE_FILES:
        check_can_draw(path)
    else:
        check_replaceable(path)


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
    figures = expert_figures(use)
    sections = render_sections(
        "experts.html", words=expert_words(use), per_layer=figures[: use.layers], over_training=figures[use.layers :]
    )
    images = f"{counted(use.images, 'image')} of {use.data}" if use.images else use.data
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
    figure.savefig(path, dpi=130, metadata={"Title": WRITTEN_BY})
