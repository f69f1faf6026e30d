"""Inline SVG charts. Colours come from the page's style sheet; series differ in shape as well as in colour."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from labelwise.report.html import Html, join, tag

_WIDTH, _HEIGHT = 440, 250  # units of a line chart; about one CSS pixel each on a page
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 14, 12, 36  # margins around the plot
_NAMES = 24  # percent of a bar chart's width for the labels' names
_BARS = 66  # percent for the bars; what is left is for the numbers behind them
_BAR, _GAP = 13, 9  # heights in pixels: one bar, and the space between two labels

Point = tuple[float, float]


def line_chart(series: Mapping[str, Sequence[Point]], *, title: str, x_label: str, y_label: str) -> Html:
    """Lines with a dot at every point; points that are not finite are left out."""
    lines = {name: [p for p in points if all(map(math.isfinite, p))] for name, points in series.items()}
    points = [point for line in lines.values() for point in line]
    if not points:
        return tag("figure", tag("figcaption", title), tag("p", "no values", class_="muted"))
    x0, x1 = _range(x for x, _ in points)
    y_ticks = ticks(*_range(y for _, y in points))

    def place(point: Point) -> Point:
        across = (point[0] - x0) / (x1 - x0) if x1 > x0 else 0.5
        up = (point[1] - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    drawn = []
    for tick in y_ticks:
        y = place((x0, tick))[1]
        drawn.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        drawn.append(tag("text", f"{tick:g}", x=_LEFT - 7, y=y + 4, class_="end"))
    for tick in (t for t in ticks(x0, x1, whole=True) if x0 <= t <= x1):
        drawn.append(tag("text", f"{tick:g}", x=place((tick, y_ticks[0]))[0], y=_HEIGHT - _BOTTOM + 17, class_="mid"))
    drawn.append(tag("text", x_label, x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - 3, class_="mid"))
    for number, (name, line) in enumerate(lines.items(), start=1):
        spots = [place(point) for point in line]
        drawn.append(
            tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in spots), class_=f"line series-{number}")
        )
        for (x, y), (epoch, value) in zip(spots, line, strict=True):
            what = tag("title", f"{name}, {x_label} {epoch:g}: {y_label} {value:.4g}")
            drawn.append(tag("circle", what, cx=round(x, 1), cy=round(y, 1), r=3.2, class_=f"dot series-{number}"))
    ends = "; ".join(f"{name} ends at {line[-1][1]:.4g}" for name, line in lines.items() if line)
    picture = tag(
        "svg", *drawn, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=f"{title}. {y_label}: {ends}."
    )
    return tag("figure", tag("figcaption", tag("strong", title), legend(list(lines))), picture, class_="chart")


def bar_chart(names: Sequence[str], series: Mapping[str, Sequence[float | None]], *, title: str) -> Html:
    """Horizontal bars from 0 to 100, one for each series below each name. Widths are shares of the page's width, so
    the letters keep their size on any screen."""
    step = _BAR * len(series) + _GAP
    drawn = []
    for share in (0, 25, 50, 75, 100):
        x = f"{_NAMES + share * _BARS / 100:g}%"
        drawn.append(tag("line", x1=x, x2=x, y1=0, y2=step * len(names) + 4, class_="grid"))
        drawn.append(tag("text", str(share), x=x, y=step * len(names) + 20, class_="mid"))
    for row, name in enumerate(names):
        y = row * step + _GAP / 2
        middle = y + _BAR * len(series) / 2 + 4
        drawn.append(tag("text", _short(name), tag("title", name), x=f"{_NAMES - 2}%", y=middle, class_="end name"))
        for number, (run, values) in enumerate(series.items(), start=1):
            value, top = values[row], y + (number - 1) * _BAR
            text = "not defined" if value is None else f"{value:.1f}"
            if value is not None:
                what = tag("title", f"{name}: {run} {text}")
                width = f"{value * _BARS / 100:.3f}%"
                look = f"bar series-{number}"
                drawn.append(tag("rect", what, x=f"{_NAMES}%", y=top + 1, width=width, height=_BAR - 2, class_=look))
            end = f"{_NAMES + 1 + (value or 0) * _BARS / 100:.3f}%"
            drawn.append(tag("text", text, x=end, y=top + _BAR - 3, class_="value"))
    picture = tag("svg", *drawn, width="100%", height=step * len(names) + 26, role="img", aria_label=title)
    return tag("figure", tag("figcaption", tag("strong", title), legend(list(series))), picture, class_="chart bars")


def legend(names: Sequence[str]) -> Html:
    """Names of the series with a swatch each."""
    swatches = (
        tag("span", tag("i", class_=f"swatch series-{number}"), name) for number, name in enumerate(names, start=1)
    )
    return tag("span", join(*swatches), class_="legend")


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Three to eight round numbers around a range.

    >>> ticks(0.13, 0.72), ticks(1, 8, whole=True), ticks(5, 5)
    ([0.0, 0.2, 0.4, 0.6, 0.8], [0.0, 2.0, 4.0, 6.0, 8.0], [4.0, 4.5, 5.0, 5.5, 6.0])
    """
    if high - low < 1e-9:
        low, high = low - 1, high + 1
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(power * factor for factor in (1, 2, 5, 10) if (high - low) / (power * factor) <= 5)
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _range(values: Iterable[float]) -> tuple[float, float]:
    listed = list(values)
    return min(listed), max(listed)


def _short(name: str, longest: int = 12) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"
