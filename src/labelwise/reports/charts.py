"""Charts for reports: differences and intervals with their uncertainty, heat maps, small precision-recall curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelwise.reports.html import Html, join, tag
from labelwise.reports.svg import Axes, Point, cut, figure, series_class, span, ticks

_NAMES, _WIDE = 24.0, 62.0  # percent of the width: names, and the plot; the rest is for numbers
_ROW = 21  # height in pixels


@dataclass(frozen=True)
class Whisker:
    """A value with its interval; significant ones are drawn filled, others hollow."""

    name: str
    value: float
    low: float
    high: float
    significant: bool = True
    series: int = 1


def difference_chart(rows: Sequence[Whisker], *, title: str, note: str) -> Html:
    """Bars to both sides of zero, in the order given."""
    drawn_rows = [row for row in rows if math.isfinite(row.value)]
    if not drawn_rows:
        return tag("figure", tag("figcaption", title), tag("p", "no values", class_="muted"), class_="chart")
    ends = [0.0, *(v for row in drawn_rows for v in (row.value, row.low, row.high) if math.isfinite(v))]
    scale = ticks(*span(ends))
    drawn = _grid(scale, len(drawn_rows), zero=True)
    for number, row in enumerate(drawn_rows):
        top = number * _ROW
        look = f"bar {'gain' if row.value >= 0 else 'loss'}{'' if row.significant else ' hollow'}"
        left, right = _x(min(0.0, row.value), scale), _x(max(0.0, row.value), scale)
        drawn.append(_name(row.name, top))
        drawn.append(
            tag(
                "rect",
                tag("title", _words(row)),
                x=f"{left:.3f}%",
                y=top + 5,
                width=f"{max(right - left, 0.05):.3f}%",
                height=_ROW - 9,
                class_=look,
            )
        )
        drawn += _interval(row, top, scale)
        drawn.append(tag("text", signed(row.value), x="99.5%", y=top + 15, class_="end value"))
    return _figure(title, drawn, len(drawn_rows), note)


def interval_chart(rows: Sequence[Whisker], *, title: str, note: str) -> Html:
    """A point with its interval per run."""
    scale = ticks(*span(v for row in rows for v in (row.value, row.low, row.high) if math.isfinite(v)))
    drawn = _grid(scale, len(rows))
    for number, row in enumerate(rows):
        top = number * _ROW
        drawn.append(_name(row.name, top))
        drawn += _interval(row, top, scale)
        drawn.append(
            tag(
                "circle",
                tag("title", _words(row)),
                cx=f"{_x(row.value, scale):.3f}%",
                cy=top + _ROW / 2,
                r=4.5,
                class_=f"dot {series_class(row.series)}",
            )
        )
        drawn.append(tag("text", f"{row.value:.1f}", x="99.5%", y=top + 15, class_="end value"))
    return _figure(title, drawn, len(rows), note)


def signed(value: float) -> str:
    """
    >>> signed(0.54), signed(-0.06), signed(-0.04)
    ('+0.5', '−0.1', '0.0')
    """
    rounded = round(value, 1)
    sign = "+" if rounded > 0 else "\N{MINUS SIGN}" if rounded < 0 else ""
    return f"{sign}{abs(rounded):.1f}"


def _x(value: float, scale: Sequence[float]) -> float:
    return _NAMES + _WIDE * (value - scale[0]) / (scale[-1] - scale[0])


def _grid(scale: Sequence[float], rows: int, zero: bool = False) -> list[Html]:
    drawn = []
    for tick in scale:
        x = f"{_x(tick, scale):.3f}%"
        look = "grid zero" if zero and tick == 0 else "grid"
        drawn.append(tag("line", x1=x, x2=x, y1=0, y2=rows * _ROW + 3, class_=look))
        text = signed(tick) if zero and abs(scale[1] - scale[0]) >= 0.1 else f"{tick:g}"
        drawn.append(tag("text", text, x=x, y=rows * _ROW + 18, class_="mid"))
    return drawn


def _name(name: str, top: float) -> Html:
    return tag("text", cut(name), tag("title", name), x=f"{_NAMES - 2}%", y=top + 15, class_="end name")


def _interval(row: Whisker, top: float, scale: Sequence[float]) -> list[Html]:
    if not (math.isfinite(row.low) and math.isfinite(row.high)):
        return []
    low, high, y = f"{_x(row.low, scale):.3f}%", f"{_x(row.high, scale):.3f}%", top + _ROW / 2
    whole = tag("line", x1=low, x2=high, y1=y, y2=y, class_="whisker")
    return [whole, *(tag("line", x1=x, x2=x, y1=y - 3, y2=y + 3, class_="whisker") for x in (low, high))]


def _words(row: Whisker) -> str:
    return f"{row.name}: {row.value:.2f} (95%: {row.low:.2f} to {row.high:.2f})"


def _figure(title: str, drawn: Sequence[Html], rows: int, note: str) -> Html:
    drawing = tag("svg", *drawn, width="100%", height=rows * _ROW + 24, role="img", aria_label=f"{title}. {note}")
    return figure(title, [], drawing, note, kind="bars")


_CELL = 16.0
_GRID_NAMES = 84.0  # units before the cells, and above them for the slanted names
_SMALL = Axes((0.0, 1.0), (0.0, 1.0), width=150, height=96, left=4, right=4, top=4, bottom=4)


def heat_map(names: Sequence[str], values: NDArray[np.float64], *, title: str, what: str) -> Html:
    """Values [n, n] from 0 to 1, as the opacity of a colour. The diagonal and NaN stay empty.

    `what` is the tooltip of a cell, with {row}, {column} and {value}.
    """
    side = len(names) * _CELL
    drawn = [tag("rect", x=_GRID_NAMES, y=_GRID_NAMES, width=side, height=side, class_="plate")]
    for place, name in enumerate(names):
        middle = _GRID_NAMES + (place + 0.5) * _CELL
        full = tag("title", name)
        drawn.append(tag("text", cut(name, 11), full, x=_GRID_NAMES - 5, y=middle + 4, class_="end name"))
        turned = f"rotate(-90 {middle + 4:g} {_GRID_NAMES - 5:g})"
        drawn.append(tag("text", cut(name, 11), full, x=middle + 4, y=_GRID_NAMES - 5, transform=turned, class_="name"))
    for row, column in np.argwhere(np.nan_to_num(values) >= 0.005):
        if row == column:
            continue
        value = float(values[row, column])
        words = what.format(row=names[row], column=names[column], value=f"{value:.0%}")
        drawn.append(
            tag(
                "rect",
                tag("title", words),
                x=_GRID_NAMES + column * _CELL + 0.5,
                y=_GRID_NAMES + row * _CELL + 0.5,
                width=_CELL - 1,
                height=_CELL - 1,
                fill_opacity=round(value**0.6, 3),  # small shares would be invisible
                class_="cell",
            )
        )
    whole = _GRID_NAMES + side + 2
    drawing = tag("svg", *drawn, viewBox=f"0 0 {whole:g} {whole:g}", role="img", aria_label=title)
    return figure(title, [], drawing, kind="heat-map")


def small_curves(
    names: Sequence[str], curves: Mapping[str, Sequence[Sequence[Point]]], captions: Sequence[str], now: Sequence[Point]
) -> Html:
    """A small plot per label. `curves` has one curve per label for each run, within (0, 0) and (1, 1); `now` is the
    operating point of the first run, at its threshold."""
    plots = []
    for place, name in enumerate(names):
        drawn = [tag("rect", x=4, y=4, width=142, height=88, class_="plate")]
        for number, lines in enumerate(curves.values(), start=1):
            spots = [_SMALL.place(point) for point in lines[place]]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
            drawn.append(tag("polyline", points=path, class_=f"line {series_class(number)}"))
        x, y = _SMALL.place(now[place])
        if np.isfinite(x) and np.isfinite(y):
            what = f"{name} at its threshold: recall {now[place][0]:.0%}, precision {now[place][1]:.0%}"
            drawn.append(tag("circle", tag("title", what), cx=round(x, 1), cy=round(y, 1), r=4, class_="now"))
        alt = f"precision against recall of {name}, {captions[place]}"
        drawing = tag("svg", *drawn, viewBox="0 0 150 96", role="img", aria_label=alt)
        plots.append(tag("figure", tag("figcaption", tag("b", name), tag("span", captions[place])), drawing))
    return tag("div", join(*plots), class_="small-curves")
