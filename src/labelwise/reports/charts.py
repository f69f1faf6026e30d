"""Charts as SVG: here things are placed, charts.html draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from labelwise.core.errors import counted
from labelwise.data.inspection import FEW
from labelwise.reports.html import Html, part

if TYPE_CHECKING:
    from labelwise.evaluation import Difference

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom

SERIES = 8  # colours; further series start again from the first
_LETTER = 9.0  # width of a letter of a chart's text, in units of the SVG
_HALF_LINE = 9.0
_NAMES, _WIDE = 24.0, 62.0  # percent of the width of a row chart: names, and the plot; the rest is for numbers


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

    def path(self, points: Iterable[Point]) -> str:
        """The points of a line as SVG writes them."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self.place, points))

    def beside(self, spots: Sequence[Point], names: Sequence[str]) -> list[tuple[float, float, str]]:
        """(x, y, name) beside each spot in the SVG where there is room; the other names are left to the legend."""
        dots = [(x - 6, y - 6, x + 6, y + 6) for x, y in spots]
        written: list[Box] = []
        found = []
        for (x, y), name in zip(spots, names, strict=True):
            wide = len(name) * _LETTER
            for left, middle in ((x + 9, y), (x - 9 - wide, y), (x - wide / 2, y - 15), (x - wide / 2, y + 15)):
                box = (left, middle - _HALF_LINE, left + wide, middle + _HALF_LINE)
                inside = self.left < left and box[2] < self.width and self.top < box[1]
                if inside and box[3] < self.height - self.bottom and not any(_meet(box, b) for b in dots + written):
                    written.append(box)
                    found.append((left, middle + 4.5, name))
                    break
        return found


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


SHARES = Axes((0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 25.0, 50.0, 75.0, 100.0))  # a fraction, and percent
SMALL = Axes((0.0, 1.0), (0.0, 1.0), width=150, height=96, left=4, right=4, top=4, bottom=4)


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


def span(values: Iterable[float], least: float = 0.0) -> tuple[float, float]:
    """The smallest and the largest finite value, moved apart if they are closer than `least`.

    >>> span([2.0, 1.0, math.nan]), span([3.0], least=1.0)
    ((1.0, 2.0), (2.5, 3.5))
    """
    listed = [value for value in values if math.isfinite(value)]
    low, high = min(listed), max(listed)
    more = max(0.0, least - (high - low)) / 2
    return low - more, high + more


def plot(axes: Axes, lines: Mapping[str, Sequence[Point]], *, title: str, x_label: str, **options: Any) -> Html:
    """Lines in a frame, with a legend of their names. The options are those of the macro `plot`."""
    return part("charts.html", "plot", axes=axes, lines=lines, title=title, x_label=x_label, **options)


def line_chart(
    series: Mapping[str, Sequence[Point]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    note: str = "",
    x_at_points: bool = False,
) -> Html:
    """Lines with a marker at every point; points that are not finite are left out.

    `x_at_points` puts the ticks of the x axis at the points instead of at round numbers: for a few settings.
    """
    lines = {name: [p for p in points if all(map(math.isfinite, p))] for name, points in series.items()}
    points = [point for line in lines.values() for point in line]
    if not points:
        return part("charts.html", "no_values", title=title)
    x0, x1 = span(x for x, _ in points)
    tried = sorted({x for x, _ in points})
    ends = "; ".join(f"{name} ends at {line[-1][1]:.4g}" for name, line in lines.items() if line)
    marks = [
        (number, point, f"{name}, {x_label} {point[0]:g}: {y_label} {point[1]:.4g}".lstrip(", "))
        for number, (name, line) in enumerate(lines.items(), start=1)
        for point in line
    ]
    return plot(
        Axes((x0, x1), ticks(*span(y for _, y in points))),
        lines,
        title=title,
        x_label=x_label,
        x_ticks=tried if x_at_points else [t for t in ticks(x0, x1, whole=True) if x0 <= t <= x1],
        marks=marks,
        note=note,
        description=f"{title}. {y_label}: {ends}.",
    )


def scatter_chart(points: Mapping[str, Point], *, title: str, x_label: str, y_label: str, least: float = 0.0) -> Html:
    """A marker and, where there is room, a name for each point. An axis spans at least `least`: stretching less would
    exaggerate a small difference."""
    finite = {name: point for name, point in points.items() if all(map(math.isfinite, point))}
    if not finite:
        return part("charts.html", "no_values", title=title)
    xs, ys = (ticks(*span((point[axis] for point in finite.values()), least)) for axis in (0, 1))
    axes = Axes(xs, ys)
    marks = [
        (number, (x, y), f"{name}: {x_label} {x:.4g}, {y_label} {y:.4g}")
        for number, (name, (x, y)) in enumerate(finite.items(), start=1)
    ]
    return plot(
        axes,
        dict.fromkeys(finite, ()),
        title=title,
        x_label=x_label,
        marks=marks,
        names=axes.beside([axes.place(point) for point in finite.values()], list(finite)),
        note=f"y axis: {y_label}",
        description=f"{title}. {y_label} against {x_label}.",
    )


@dataclass(frozen=True)
class Row:
    """A value with its interval, in percent; significant ones are drawn filled, others hollow.

    `images` stand behind it; with too few of them it is grey.
    """

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    significant: bool = True
    series: int = 1
    images: int | None = None

    @property
    def few(self) -> bool:
        return self.images is not None and self.images < FEW

    @property
    def words(self) -> str:
        interval = f" (95%: {self.low:.2f} to {self.high:.2f})" if math.isfinite(self.low) else ""
        images = "" if self.images is None else f", of {counted(self.images, 'image')}"
        return f"{self.name}: {self.value:.2f}{interval}{images}"


def row_chart(
    rows: Sequence[Row], *, title: str, note: str = "", style: Literal["bars", "dots", "differences"]
) -> Html:
    """A row for each value: bars from 0 to 100, dots with their intervals, or bars to both sides of zero.

    Widths are percentages of the page's width, so that the text keeps its size on any screen.
    """
    ends = [end for row in rows for end in (row.value, row.low, row.high)]
    if style != "bars" and not any(map(math.isfinite, ends)):
        return part("charts.html", "no_values", title=title)
    scale = [0.0, 25.0, 50.0, 75.0, 100.0] if style == "bars" else ticks(*span([*ends, *([0.0] * (style != "dots"))]))

    images = any(row.images is not None for row in rows)  # a second column of numbers

    def x(value: float) -> float:
        return _NAMES + (_WIDE - 10 * images) * (value - scale[0]) / (scale[-1] - scale[0])

    return part(
        "charts.html", "row_chart", rows=rows, ticks=scale, x=x, title=title, note=note, style=style, images=images
    )


def difference_chart(
    labels: Sequence[str], differences: Sequence[Difference], significant: Sequence[bool], *, title: str, shown: int
) -> Html:
    """Differences of average precision by label, the largest gain first; only the `shown` largest."""
    rows = [
        Row(label, 100 * d.value, 100 * d.interval.low, 100 * d.interval.high, found)
        for label, d, found in zip(labels, differences, significant, strict=True)
        if math.isfinite(d.value)
    ]
    most = sorted(sorted(rows, key=lambda row: -abs(row.value))[:shown], key=lambda row: -row.value)
    note = "Filled bars: significant. Hollow bars: not significant. Lines: 95% intervals."
    if len(labels) > shown:
        note += f" Shown: the {shown} of {len(labels)} labels that differ most."
    return row_chart(most, title=f"{title}, in points of AP", note=note, style="differences")
