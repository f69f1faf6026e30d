"""Charts of values with their uncertainty: differences around zero, and intervals of several runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labelwise.report.axes import ticks
from labelwise.report.charts import cut, figure, look_of, span
from labelwise.report.html import Html, tag

_NAMES, _WIDE = 24.0, 62.0  # percent of the width: names, and the plot; the rest is for numbers
_ROW = 21  # height in pixels


@dataclass(frozen=True)
class Whisker:
    """A value with an interval around it; `sure` ones are drawn full, others hollow."""

    name: str
    value: float
    low: float
    high: float
    sure: bool = True
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
        look = f"bar {'gain' if row.value >= 0 else 'loss'}{'' if row.sure else ' unsure'}"
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
    """A point with its interval for each run."""
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
                class_=f"dot {look_of(row.series)}",
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
    picture = tag("svg", *drawn, width="100%", height=rows * _ROW + 24, role="img", aria_label=f"{title}. {note}")
    return figure(title, [], picture, note, kind="bars")
