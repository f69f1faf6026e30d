"""The snippets of docs/guides/evaluation.md give what the page says, and its commands are ones that exist."""

from __future__ import annotations

import doctest
import shlex
from pathlib import Path

from labelwise.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "evaluation.md"


def test_snippets_of_the_page() -> None:
    results = doctest.testfile(str(PAGE), module_relative=False)
    assert results.attempted >= 20
    assert results.failed == 0


def test_commands_of_the_page_parse() -> None:
    commands = [line.strip() for line in PAGE.read_text().splitlines() if line.startswith("    labelwise ")]
    assert len(commands) >= 5
    for command in commands:
        function, bound, _ = app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)
        assert function.__name__ == "evaluate"
        assert bound.arguments["model"] == "runs/first"
