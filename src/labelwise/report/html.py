"""HTML as values: text is escaped when it becomes part of an element, so that no caller can forget it."""

from __future__ import annotations

from html import escape

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
