"""`--set option=value`: any option of a head on the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import yaml
from rich.console import Console

from labelwise.core.errors import LabelwiseError


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """Values are read as YAML, so numbers, booleans, null and lists come out as such.

    >>> parse_options(["shared_experts=4", "widths=[64, 16]", "dim=null"])
    {'shared_experts': 4, 'widths': [64, 16], 'dim': None}
    """
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise LabelwiseError(f"--set {pair!r}: write it as OPTION=VALUE, for example --set shared_experts=4")
        try:
            options[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise LabelwiseError(f"--set {pair!r}: cannot read the value {value!r}") from None
    return options


def say(text: str, stderr: bool = False) -> None:
    """A line as it is: paths hold brackets, are longer than a terminal is wide, and need not be UTF-8."""
    printable = os.fsencode(text).decode("utf-8", "replace")
    Console(stderr=stderr).print(printable, markup=False, highlight=False, soft_wrap=True)
