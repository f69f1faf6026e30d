"""The frame of a chart: places values, draws grid, numbers and the names of the axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labelwise.report.html import Html, tag

Point = tuple[float, float]

_LETTER = 9.0  # width of a letter of a chart's text, in units of the picture
_HALF_LINE = 9.0


@dataclass(frozen=True)
class Axes:
    """`x` and `y` are the numbers along the axes; the first and the last one are the ends of the plot."""

    x: Sequence[float]
    y: Sequence[float]
    width: float = 440
    height: float = 250
    left: float = 52
    right: float = 14
    top: float = 12
    bottom: float = 44

    def place(self, point: Point) -> Point:
        across = (point[0] - self.x[0]) / (self.x[-1] - self.x[0]) if self.x[-1] > self.x[0] else 0.5
        up = (point[1] - self.y[0]) / (self.y[-1] - self.y[0]) if self.y[-1] > self.y[0] else 0.5
        return (
            self.left + across * (self.width - self.left - self.right),
            self.height - self.bottom - up * (self.height - self.top - self.bottom),
        )

    def drawn(self, x_label: str, x_ticks: Sequence[float] | None = None) -> list[Html]:
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
        """Each name beside its point (a place on the picture), where there is room; others are left to the legend."""
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
