"""What the figures that matplotlib draws have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labelwise.errors import LabelwiseError, missing_extra


def check_can_draw(path: Path) -> None:
    """Say what is missing before minutes are spent on what is to be drawn."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise LabelwiseError(f"cannot draw into {str(path)!r}; name a .png, .pdf or .svg file")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise missing_extra("matplotlib", "plots") from None


@contextmanager
def names_as_written() -> Iterator[None]:
    """Also a decorator. matplotlib would read `US$ and A$` as mathematics, and fail where it is none."""
    try:
        import matplotlib
    except ImportError:
        raise missing_extra("matplotlib", "plots") from None
    with matplotlib.rc_context({"text.parse_math": False}):
        yield
