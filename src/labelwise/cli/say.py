"""What commands tell people."""

from __future__ import annotations

import os

from rich.console import Console


def say(text: str, stderr: bool = False) -> None:
    """A line as it is: paths hold brackets, are longer than a terminal is wide, and need not be UTF-8."""
    printable = os.fsencode(text).decode("utf-8", "replace")
    Console(stderr=stderr).print(printable, markup=False, highlight=False, soft_wrap=True)
