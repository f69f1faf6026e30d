"""One HTML file that needs nothing else: no network; light and dark, on paper, from 400 pixels up."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from labelwise.atomic_file import write_whole
from labelwise.report.html import Html, join, tag

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
    write_whole(target, join(Html("<!doctype html>\n"), tag("html", head, body, lang="en"), "\n").encode())
    return target


def _may_run(code: str | None) -> str:
    if code is None:
        return ""
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode("ascii")
    return f"; script-src 'sha256-{digest}'"


def _scripts(script: Script | None, code: str | None) -> Html | None:
    if script is None or code is None:
        return None
    # Inside a script element nothing is an entity: only `<` could end it, and JSON has another way to write that.
    data = json.dumps(script.data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return join(tag("script", Html(data), type="application/json", id="data"), tag("script", Html(code)))
