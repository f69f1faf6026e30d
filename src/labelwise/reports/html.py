"""HTML as values: text is escaped when it becomes part of an element, so that no caller can forget it."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from labelwise.core.files import atomic_write, sha256
from labelwise.evaluation import Interval

_VOID = {"img", "meta", "link", "br"}  # elements without an end tag


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | None) -> Html:
    """An element. Children that are no `Html` are escaped, None is left out; `class_` is class, `_` in names is `-`.

    >>> tag("p", "1 < 2 ", tag("b", "yes"), class_="note", aria_label='"quoted"')
    '<p class="note" aria-label="&quot;quoted&quot;">1 &lt; 2 <b>yes</b></p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    start = f"<{name}{written}>"
    return Html(start if name in _VOID else f"{start}{join(*children)}</{name}>")


def join(*children: str | None) -> Html:
    """Several pieces after each other.

    >>> join("a&b", None, tag("br"))
    'a&amp;b<br>'
    """
    return Html("".join(c if isinstance(c, Html) else escape(c) for c in children if c is not None))


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


# The browser itself refuses to fetch anything, and to run any script but ours, whatever a label's name may be.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    title: str
    body: Html
    intro: str = ""


@dataclass(frozen=True)
class Script:
    """A script of this package and the data it reads: JSON in an element with the id `data`."""

    file: str
    data: Any


def write_report(
    path: str | Path,
    *,
    title: str,
    sections: Sequence[Section],
    lead: str = "",
    footer: str = "",
    contents: bool = False,
    script: Script | None = None,
) -> Path:
    """Write the page: `lead` is what stands below the title, `contents` adds a line of links to the sections. Plain
    text is escaped; `Html` is taken as it is. A page that is there is replaced when the new one is complete."""
    code = None if script is None else files(__package__).joinpath(script.file).read_text("utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY + _may_run(code)),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Html(files(__package__).joinpath("page.css").read_text("utf-8"))),
    )
    main = [tag("header", tag("h1", title), lead if isinstance(lead, Html) else tag("p", lead))]
    if contents:
        links = (tag("a", section.title, href=f"#section-{n}") for n, section in enumerate(sections, start=1))
        main.append(tag("nav", *links, aria_label="Contents"))
    for number, section in enumerate(sections, start=1):
        heading = tag("h2", section.title, id=f"section-{number}")
        intro = tag("p", section.intro, class_="intro") if section.intro else None
        main.append(tag("section", heading, intro, section.body, aria_labelledby=f"section-{number}"))
    body = tag("body", tag("main", *main), tag("footer", footer) if footer else None, _scripts(script, code))
    target = Path(path)
    atomic_write(target, join(Html("<!doctype html>\n"), tag("html", head, body, lang="en"), "\n"))
    return target


def _may_run(code: str | None) -> str:
    if code is None:
        return ""
    digest = base64.b64encode(sha256(code).digest()).decode("ascii")
    return f"; script-src 'sha256-{digest}'"


def _scripts(script: Script | None, code: str | None) -> Html | None:
    if script is None or code is None:
        return None
    # Inside a script element nothing is an entity: only `<` could end it, and JSON has another way to write that.
    data = json.dumps(script.data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return join(tag("script", Html(data), type="application/json", id="data"), tag("script", Html(code)))


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
