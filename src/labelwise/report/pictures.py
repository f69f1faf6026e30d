"""Small pictures with a few words: mistakes, and labels to check."""

from __future__ import annotations

from pathlib import Path

from labelwise.data.images import BadImageError, load_image
from labelwise.report.html import Html, join, tag
from labelwise.report.overlay import data_uri

_SIDE = 190  # pixels of the longer side inside the page


def picture_card(image: str, label: str, words: str, present: tuple[str, ...]) -> Html:
    """A picture, what is claimed about `label`, and what its labels say."""
    name = Path(image).name
    return tag(
        "figure",
        _thumbnail(image, f"{name}: {', '.join(present) or 'no label'}"),
        tag(
            "figcaption",
            tag("b", label),
            tag("span", words),
            tag("small", f"labelled: {', '.join(present) or 'nothing'}"),
            tag("small", name, title=image, class_="path"),
        ),
    )


def picture_grid(cards: list[Html]) -> Html:
    return tag("div", join(*cards), class_="pictures")


def _thumbnail(image: str, alt: str) -> Html:
    try:
        return tag("img", src=data_uri(load_image(image, at_least=_SIDE), _SIDE), alt=alt)
    except BadImageError as error:
        return tag("div", f"no picture: {error.reason}", class_="gone", role="img", aria_label=alt)
