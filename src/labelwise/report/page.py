"""One HTML file that needs nothing else: no network, no script; light and dark, on paper, from 400 pixels up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from labelwise.report.html import Html, join, tag

# The browser itself refuses to fetch or run anything, whatever a label's name may be.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    title: str
    body: Html
    intro: str = ""


def write_report(
    path: str | Path, *, title: str, sections: Sequence[Section], lead: str = "", footer: str = ""
) -> Path:
    """Write the page: `lead` is what stands below the title. Plain text is escaped; `Html` is taken as it is."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Html(files(__package__).joinpath("page.css").read_text("utf-8"))),
    )
    main = [tag("header", tag("h1", title), lead if isinstance(lead, Html) else tag("p", lead))]
    for number, section in enumerate(sections, start=1):
        heading = tag("h2", section.title, id=f"section-{number}")
        intro = tag("p", section.intro, class_="intro") if section.intro else None
        main.append(tag("section", heading, intro, section.body, aria_labelledby=f"section-{number}"))
    body = tag("body", tag("main", *main), tag("footer", footer) if footer else None)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(join(Html("<!doctype html>\n"), tag("html", head, body, lang="en"), "\n"), encoding="utf-8")
    return target
