"""Pages from the templates beside this file. Templates escape all text, so that no caller can forget it."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from labelwise.core.errors import counted
from labelwise.core.files import atomic_write, sha256
from labelwise.reports.terms import explained

if TYPE_CHECKING:
    from labelwise.evaluation import Interval

Html = Markup
# The browser refuses to fetch anything, and to run any script but ours, whatever a label's name may be.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    """A part of a page. Plain text is escaped, `Html` is not. `group` is the heading above it, if one starts here."""

    title: str
    body: Html
    intro: str = ""
    group: str = ""


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
    hashed = base64.b64encode(sha256(code).digest()).decode("ascii")
    # Inside a script element nothing is an entity: only `<` could end it, and JSON has another way to write that.
    data = "" if script is None else json.dumps(script.data, ensure_ascii=False, allow_nan=False)
    text = _template("page.html").render(
        policy=f"{_POLICY}; script-src 'sha256-{hashed}'" if script else _POLICY,
        title=title,
        style=Markup(_file("page.css")),
        lead=lead,
        contents=contents,
        sections=sections,
        footer=footer,
        script=script and {"json": Markup(data.replace("<", "\\u003c")), "code": Markup(code)},
    )
    atomic_write(path, text)
    return Path(path)


def render_sections(template: str, **values: Any) -> list[Section]:
    """The sections of a template, each written as `{% call section(title) %} ... {% endcall %}`, with tooltips."""
    found: list[Section] = []

    def section(title: str, group: str = "", *, caller: Callable[[], Html]) -> str:
        found.append(Section(title, explained(caller()), group=group))
        return ""

    _template(template).render(section=section, **values)
    return found


def part(template: str, macro: str, /, **values: Any) -> Html:
    """A piece of a page: a macro of a template."""
    return Markup(getattr(_template(template).module, macro)(**values))


def counted_labels(pairs: Sequence[tuple[str, object]], most: int = 8) -> str:
    """
    >>> counted_labels([("cat", 3), ("dog", "12 of 40"), ("cow", 1)], most=2)
    'cat (3), dog (12 of 40) and 1 more'
    """
    said = ", ".join(f"{label} ({number})" for label, number in pairs[:most])
    return f"{said} and {len(pairs) - most} more" if len(pairs) > most else said


@cache
def _template(name: str) -> Any:
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("labelwise.reports", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: f"{value:.6g}" if isinstance(value, float) else value,  # coordinates
    )
    environment.filters |= {"percent": percent, "interval": interval, "count": count, "signed": signed}
    environment.filters |= {
        "counted": counted,
        "thousands": "{:,}".format,
        "cut": cut,
        "counted_labels": counted_labels,
    }
    return environment


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


# Numbers and names as text: filters of the templates.


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


def signed(value: float) -> str:
    """
    >>> signed(0.54), signed(-0.06), signed(-0.04)
    ('+0.5', '−0.1', '0.0')
    """
    rounded = round(value, 1)
    sign = "+" if rounded > 0 else "\N{MINUS SIGN}" if rounded < 0 else ""
    return f"{sign}{abs(rounded):.1f}"


def count(number: float) -> str:
    """
    >>> count(950), count(6_086_124), count(653_810_224), count(12_500_000_000)
    ('950', '6.09 M', '654 M', '12.5 G')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:g}"


def cut(name: str, longest: int = 12) -> str:
    """
    >>> cut("pottedplant"), cut("a very long name")
    ('pottedplant', 'a very long…')
    """
    return name if len(name) <= longest else name[: longest - 1] + "…"
