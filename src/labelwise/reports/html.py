"""Pages and their pieces. Text is escaped when it becomes part of an element, so that no caller can forget it."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from labelwise.core.files import atomic_write, sha256

if TYPE_CHECKING:
    from labelwise.evaluation import Interval

Html = Markup
_VOID = {"img", "meta", "link", "br"}  # elements without an end tag
# The browser refuses to fetch anything, and to run any script but ours, whatever a label's name may be.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    """A part of a page. Plain text is escaped, `Html` is not."""

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
    """Write a self-contained page, atomically.

    Args:
        path: The file to write.
        title: Title and heading of the page.
        sections: The parts of the page.
        lead: What stands below the title. Plain text is escaped, `Html` is not.
        footer: What stands at the end.
        contents: Whether to add links to the sections.
        script: A script that the page runs; it may run no other.

    Returns:
        The file.
    """
    code = "" if script is None else _file(script.file)
    policy = f"{_POLICY}; script-src 'sha256-{_base64(sha256(code).digest())}'" if script else _POLICY
    # Inside a script element nothing is an entity: only `<` could end it, and JSON has another way to write that.
    data = "" if script is None else json.dumps(script.data, ensure_ascii=False, allow_nan=False)
    page = _templates().get_template("page.html")
    text = page.render(
        policy=policy,
        title=title,
        style=Markup(_file("page.css")),
        lead=lead if isinstance(lead, Markup) else tag("p", lead),
        contents=contents,
        sections=sections,
        footer=footer,
        script=script and {"json": Markup(data.replace("<", "\\u003c")), "code": Markup(code)},
    )
    atomic_write(path, text)
    return Path(path)


def tag(name: str, /, *children: str | None, **attributes: str | float | None) -> Html:
    """An element. Children that are not `Html` are escaped, None is left out; `class_` is class, `_` in names is `-`.

    >>> print(tag("p", "1 < 2 ", tag("b", "yes"), class_="note", aria_label='"quoted"'))
    <p class="note" aria-label="&#34;quoted&#34;">1 &lt; 2 <b>yes</b></p>
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value if isinstance(value, str) else f"{value:.6g}")}"'
        for key, value in attributes.items()
        if value is not None
    )
    start = f"<{name}{written}>"
    return Markup(start if name in _VOID else f"{start}{join(*children)}</{name}>")


def join(*children: str | None) -> Html:
    """Several pieces after each other.

    >>> print(join("a&b", None, tag("br")))
    a&amp;b<br>
    """
    return Markup("").join(child for child in children if child is not None)


def part(name: str, /, **values: Any) -> Html:
    """A macro of parts.html."""
    macro = getattr(_templates().get_template("parts.html").module, name)
    return Markup(macro(**values))


def table(heads: Sequence[str], rows: Iterable[Sequence[str | None]], *, words: int = 1) -> Html:
    """A table whose first `words` columns are text and the others numbers; it scrolls sideways if it is too wide."""
    return part("table", heads=heads, rows=list(rows), words=words)


@cache
def _templates() -> Environment:
    loader = PackageLoader("labelwise.reports", "")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


# Numbers as text.


def percent(fraction: float) -> str:
    """
    >>> percent(0.8668), percent(math.nan)
    ('86.7', '–')
    """
    return "\N{EN DASH}" if math.isnan(fraction) else f"{100 * fraction:.1f}"


def interval(found: Interval | None) -> str:
    """
    >>> from labelwise.evaluation import Interval
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
