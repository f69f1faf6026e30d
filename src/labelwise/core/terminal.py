"""All that labelwise prints passes through here: names of files and labels cannot control the terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Control characters, line separators, characters that reverse the text after them, and what no encoding has: lone
# surrogates and noncharacters. Joiners stay: emoji, Persian and Hindi need them.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def visible(text: str, keep: str = "") -> str:
    r"""The text with everything that a terminal would obey written as an escape; XML may hold the result, too.

    Args:
        text: A name, or a line with names in it.
        keep: Characters that stay as they are.

    >>> print(visible("a\x1b[31m.jpg"), visible("two\nlines"), visible("caf\udce9 👩‍🔬 زیبا"))
    a\x1b[31m.jpg two\nlines caf\udce9 👩‍🔬 زیبا
    """
    return _INVISIBLE.sub(lambda char: char[0] if char[0] in keep else ascii(char[0])[1:-1], text)


def say(text: str, *, stderr: bool = False) -> None:
    """Print text, without wrapping or markup: paths hold brackets and are longer than a terminal is wide."""
    stream = sys.stderr if stderr else sys.stdout
    stream.write(visible(text, keep="\n\t") + "\n")
    stream.flush()  # whoever reads the lines gets each when it is there


def open_console(**options: Any) -> Console:
    """A rich console that prints names as `visible` writes them. Imported on first use: a single line needs no rich."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class VisibleConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for part in super().render(renderable, options):  # rich's own colours and movements are not text
                yield part if part.control else Segment(visible(part.text, keep="\n"), part.style)

    return VisibleConsole(**options)
