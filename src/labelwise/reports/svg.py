"""Charts as SVG: axes, lines, points and horizontal bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from labelwise.reports.html import Html, join, tag

Point = tuple[float, float]

_LETTER = 9.0  # width of a letter of a chart's text, in units of the SVG
_HALF_LINE = 9.0
SERIES = 8  # colours; further series start again from the first
_NAMES = 24  # percent of a bar chart's width for the labels' names
_BARS = 66  # percent for the bars; the rest is for the numbers behind them
_BAR, _GAP = 13, 9  # heights in pixels: one bar, and the space between two labels


@dataclass(frozen=True)
class Axes:
    """The frame of a chart. `x` and `y` are the ticks of the axes; the first and the last are the ends of the plot."""

    x: Sequence[float]
    y: Sequence[float]
    width: float = 440
    height: float = 250
    left: float = 52
    right: float = 14
    top: float = 12
    bottom: float = 44

    def place(self, point: Point) -> Point:
        """Where a point of the data lies in the SVG."""
        across = (point[0] - self.x[0]) / (self.x[-1] - self.x[0]) if self.x[-1] > self.x[0] else 0.5
        up = (point[1] - self.y[0]) / (self.y[-1] - self.y[0]) if self.y[-1] > self.y[0] else 0.5
        return (
            self.left + across * (self.width - self.left - self.right),
            self.height - self.bottom - up * (self.height - self.top - self.bottom),
        )

    def drawn(self, x_label: str, x_ticks: Sequence[float] | None = None) -> list[Html]:
        """Grid, ticks and the name of the x axis."""
        parts = []
        for tick in self.y:
            y = self.place((self.x[0], tick))[1]
            parts.append(tag("line", x1=self.left, x2=self.width - self.right, y1=y, y2=y, class_="grid"))
            parts.append(tag("text", f"{tick:g}", x=self.left - 7, y=y + 4, class_="end"))
        for tick in self.x if x_ticks is None else x_ticks:
            x = self.place((tick, self.y[0]))[0]
            parts.append(tag("text", f"{tick:g}", x=x, y=self.height - self.bottom + 21, class_="mid"))
        middle = (self.left + self.width - self.right) / 2
        parts.append(tag("text", x_label, x=middle, y=self.height - 3, class_="mid"))
        return parts

    def svg(self, drawn: Sequence[Html], description: str) -> Html:
        return tag("svg", *drawn, viewBox=f"0 0 {self.width:g} {self.height:g}", role="img", aria_label=description)

    def beside(self, points: Sequence[Point], names: Sequence[str]) -> list[Html]:
        """Each name beside its point (placed), where there is room; the others are left to the legend."""
        dots = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
        written: list[tuple[float, float, float, float]] = []
        parts = []
        for (x, y), name in zip(points, names, strict=True):
            wide = len(name) * _LETTER
            for left, middle in ((x + 9, y), (x - 9 - wide, y), (x - wide / 2, y - 15), (x - wide / 2, y + 15)):
                box = (left, middle - _HALF_LINE, left + wide, middle + _HALF_LINE)
                inside = self.left < left and box[2] < self.width and self.top < box[1]
                if inside and box[3] < self.height - self.bottom and not any(_meet(box, b) for b in dots + written):
                    written.append(box)
                    parts.append(tag("text", name, x=left, y=middle + 4.5, class_="beside"))
                    break
        return parts


def _meet(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


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


def line_chart(
    series: Mapping[str, Sequence[Point]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    note: str | None = None,
    x_at_points: bool = False,
) -> Html:
    """Lines with a marker at every point; points that are not finite are left out.

    `x_at_points` puts the ticks of the x axis at the points instead of at round numbers: for a few settings.
    """
    lines = {name: [p for p in points if all(map(math.isfinite, p))] for name, points in series.items()}
    points = [point for line in lines.values() for point in line]
    if not points:
        return tag("figure", tag("figcaption", title), tag("p", "no values", class_="muted"))
    x0, x1 = span(x for x, _ in points)
    axes = Axes((x0, x1), ticks(*span(y for _, y in points)))
    tried = sorted({x for x, _ in points})
    drawn = axes.drawn(x_label, tried if x_at_points else [t for t in ticks(x0, x1, whole=True) if x0 <= t <= x1])
    for number, (name, line) in enumerate(lines.items(), start=1):
        spots = [axes.place(point) for point in line]
        drawn.append(path_of(spots, number))
        for spot, (x, value) in zip(spots, line, strict=True):
            drawn.append(mark(spot, number, f"{name}, {x_label} {x:g}: {y_label} {value:.4g}".lstrip(", ")))
    ends = "; ".join(f"{name} ends at {line[-1][1]:.4g}" for name, line in lines.items() if line)
    return figure(title, list(lines), axes.svg(drawn, f"{title}. {y_label}: {ends}."), note)


def scatter_chart(points: Mapping[str, Point], *, title: str, x_label: str, y_label: str, least: float = 0.0) -> Html:
    """A marker and, where there is room, a name for each point. An axis spans at least `least`: stretching less would
    exaggerate a small difference."""
    finite = {name: point for name, point in points.items() if all(map(math.isfinite, point))}
    if not finite:
        return tag("figure", tag("figcaption", title), tag("p", "no values", class_="muted"))
    xs, ys = (ticks(*span((point[axis] for point in finite.values()), least)) for axis in (0, 1))
    axes = Axes(xs, ys)
    drawn = axes.drawn(x_label)
    spots = [axes.place(point) for point in finite.values()]
    for number, (name, spot) in enumerate(zip(finite, spots, strict=True), start=1):
        x, y = finite[name]
        drawn.append(mark(spot, number, f"{name}: {x_label} {x:.4g}, {y_label} {y:.4g}"))
    drawn += axes.beside(spots, list(finite))
    return figure(title, list(finite), axes.svg(drawn, f"{title}. {y_label} against {x_label}."), f"y axis: {y_label}")


def bar_chart(names: Sequence[str], series: Mapping[str, Sequence[float | None]], *, title: str) -> Html:
    """Horizontal bars from 0 to 100, one per series for each name. Widths are percentages of the page's width, so that
    the text keeps its size on any screen."""
    step = _BAR * len(series) + _GAP
    drawn = []
    for share in (0, 25, 50, 75, 100):
        x = f"{_NAMES + share * _BARS / 100:g}%"
        drawn.append(tag("line", x1=x, x2=x, y1=0, y2=step * len(names) + 4, class_="grid"))
        drawn.append(tag("text", str(share), x=x, y=step * len(names) + 20, class_="mid"))
    for row, name in enumerate(names):
        y = row * step + _GAP / 2
        middle = y + _BAR * len(series) / 2 + 4
        drawn.append(tag("text", cut(name), tag("title", name), x=f"{_NAMES - 2}%", y=middle, class_="end name"))
        for number, (run, values) in enumerate(series.items(), start=1):
            value, top = values[row], y + (number - 1) * _BAR
            text = "not defined" if value is None else f"{value:.1f}"
            if value is not None:
                what = tag("title", f"{name}: {run} {text}")
                width = f"{value * _BARS / 100:.3f}%"
                look = f"bar {series_class(number)}"
                drawn.append(tag("rect", what, x=f"{_NAMES}%", y=top + 1, width=width, height=_BAR - 2, class_=look))
            end = f"{_NAMES + 1 + (value or 0) * _BARS / 100:.3f}%"
            drawn.append(tag("text", text, x=end, y=top + _BAR - 3, class_="value"))
    drawing = tag("svg", *drawn, width="100%", height=step * len(names) + 26, role="img", aria_label=title)
    return figure(title, list(series), drawing, kind="bars")


def figure(title: str, names: Sequence[str], drawing: Html, note: str | None = None, kind: str = "") -> Html:
    """A chart with its title, a legend if there is more than one series, and a note."""
    shown = legend(names) if len(names) > 1 or (names and names[0]) else None
    caption = tag("figcaption", tag("strong", title), shown)
    below = tag("p", note, class_="note") if note else None
    return tag("figure", caption, drawing, below, class_=f"chart {kind}".strip())


def legend(names: Sequence[str]) -> Html:
    """The names of the series, each with a swatch."""
    swatches = (
        tag("span", tag("i", class_=f"swatch {series_class(number)}"), name)
        for number, name in enumerate(names, start=1)
    )
    return tag("span", join(*swatches), class_="legend")


def series_class(number: int) -> str:
    """The CSS class that gives series `number` (from 1) its colour, dashes and fill."""
    return f"series-{(number - 1) % SERIES + 1}"


def path_of(spots: Sequence[Point], number: int) -> Html:
    return tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in spots), class_=f"line {series_class(number)}")


def mark(spot: Point, number: int, what: str) -> Html:
    """A dot, square, diamond or triangle."""
    x, y = round(spot[0], 1), round(spot[1], 1)
    look, title = f"dot {series_class(number)}", tag("title", what)
    shape = (number - 1) % 4
    if shape == 0:
        return tag("circle", title, cx=x, cy=y, r=3.4, class_=look)
    if shape == 1:
        return tag("path", title, d=f"M{x - 3.2:g} {y - 3.2:g}h6.4v6.4h-6.4z", class_=look)
    corners = f"M{x} {y - 4.4:g}l4.4 4.4l-4.4 4.4l-4.4 -4.4z" if shape == 2 else f"M{x} {y - 4.2:g}l4.4 7.4h-8.8z"
    return tag("path", title, d=corners, class_=look)


def span(values: Iterable[float], least: float = 0.0) -> tuple[float, float]:
    """The smallest and the largest value, moved apart if they are closer than `least`.

    >>> span([2.0, 1.0]), span([3.0], least=1.0)
    ((1.0, 2.0), (2.5, 3.5))
    """
    listed = list(values)
    low, high = min(listed), max(listed)
    more = max(0.0, least - (high - low)) / 2
    return low - more, high + more


def cut(name: str, longest: int = 12) -> str:
    """
    >>> cut("pottedplant"), cut("a very long name")
    ('pottedplant', 'a very long…')
    """
    return name if len(name) <= longest else name[: longest - 1] + "…"
