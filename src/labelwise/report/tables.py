"""Tables on the page, and how numbers are written in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from labelwise.evaluation import Interval
from labelwise.report.html import Html, tag

Cell = str | Html | None


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell]], *, words: int = 1) -> Html:
    """The first `words` columns are words, the others numbers; it scrolls sideways inside its frame if it must."""
    look = [None if n < words else "number" for n in range(len(heads))]
    top = tag("tr", *(tag("th", head, scope="col", class_=kind) for head, kind in zip(heads, look, strict=True)))
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", cell, class_=kind) for cell, kind in zip(row[1:], look[1:], strict=True)),
        )
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", top), tag("tbody", *body), class_="metrics"), class_="scroll")


def percent(fraction: float) -> str:
    """
    >>> percent(0.8668), percent(math.nan)
    ('86.7', '–')
    """
    return "\N{EN DASH}" if math.isnan(fraction) else f"{100 * fraction:.1f}"


def interval(found: Interval | None) -> str:
    """
    >>> interval(Interval(0.85794, 0.87493)), interval(None)
    ('85.8 to 87.5', '')
    """
    if found is None or math.isnan(found.low):
        return ""
    return f"{100 * found.low:.1f} to {100 * found.high:.1f}"


def with_interval(fraction: float, found: Interval | None) -> Html:
    said = interval(found)
    return tag("span", percent(fraction), tag("small", said) if said else None)


def count(number: float) -> str:
    """
    >>> count(950), count(6_086_124), count(653_810_224), count(12_500_000_000)
    ('950', '6.09 M', '654 M', '12.5 G')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:g}"
