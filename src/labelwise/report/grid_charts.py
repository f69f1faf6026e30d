"""Charts of many small things: a heat map of label pairs, and one small precision-recall curve for each label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from labelwise.report.axes import Axes, Point
from labelwise.report.charts import cut, figure, look_of
from labelwise.report.html import Html, join, tag

_CELL = 16.0
_NAMES = 84.0  # units before the cells, and above them for the slanted names
_SMALL = Axes((0.0, 1.0), (0.0, 1.0), width=150, height=96, left=4, right=4, top=4, bottom=4)


def heat_map(names: Sequence[str], values: NDArray[np.float64], *, title: str, what: str) -> Html:
    """Values [n, n] from 0 to 1: the fuller the colour the higher. `what` is the sentence of one cell's tooltip, with
    {row}, {column} and {value}. The diagonal and NaN stay empty."""
    side = len(names) * _CELL
    drawn = [tag("rect", x=_NAMES, y=_NAMES, width=side, height=side, class_="plate")]
    for place, name in enumerate(names):
        middle = _NAMES + (place + 0.5) * _CELL
        full = tag("title", name)
        drawn.append(tag("text", cut(name, 11), full, x=_NAMES - 5, y=middle + 4, class_="end name"))
        turned = f"rotate(-90 {middle + 4:g} {_NAMES - 5:g})"
        drawn.append(tag("text", cut(name, 11), full, x=middle + 4, y=_NAMES - 5, transform=turned, class_="name"))
    for row, column in np.argwhere(np.nan_to_num(values) >= 0.005):
        if row == column:
            continue
        value = float(values[row, column])
        words = what.format(row=names[row], column=names[column], value=f"{value:.0%}")
        drawn.append(
            tag(
                "rect",
                tag("title", words),
                x=_NAMES + column * _CELL + 0.5,
                y=_NAMES + row * _CELL + 0.5,
                width=_CELL - 1,
                height=_CELL - 1,
                fill_opacity=round(value**0.6, 3),  # small shares would be invisible
                class_="cell",
            )
        )
    whole = _NAMES + side + 2
    picture = tag("svg", *drawn, viewBox=f"0 0 {whole:g} {whole:g}", role="img", aria_label=title)
    return figure(title, [], picture, kind="heat-map")


def small_curves(
    names: Sequence[str], curves: Mapping[str, Sequence[Sequence[Point]]], captions: Sequence[str], now: Sequence[Point]
) -> Html:
    """A small plot for each label: `curves` has for each run one curve per label, from (0, 0) to (1, 1); `now` is the
    first run's working point, where its threshold is."""
    plots = []
    for place, name in enumerate(names):
        drawn = [tag("rect", x=4, y=4, width=142, height=88, class_="plate")]
        for number, lines in enumerate(curves.values(), start=1):
            spots = [_SMALL.place(point) for point in lines[place]]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
            drawn.append(tag("polyline", points=path, class_=f"line {look_of(number)}"))
        x, y = _SMALL.place(now[place])
        if np.isfinite(x) and np.isfinite(y):
            what = f"{name} at its threshold: recall {now[place][0]:.0%}, precision {now[place][1]:.0%}"
            drawn.append(tag("circle", tag("title", what), cx=round(x, 1), cy=round(y, 1), r=4, class_="now"))
        alt = f"precision against recall of {name}, {captions[place]}"
        picture = tag("svg", *drawn, viewBox="0 0 150 96", role="img", aria_label=alt)
        plots.append(tag("figure", tag("figcaption", tag("b", name), tag("span", captions[place])), picture))
    return tag("div", join(*plots), class_="small-curves")
