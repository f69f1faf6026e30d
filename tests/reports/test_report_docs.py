"""docs/guides/report.md: its snippets run and its commands parse."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cyclopts import App

from labelwise.cli.report import report

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "report.md"


def test_python_in_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {})  # our own page


def test_commands_of_the_page_parse() -> None:
    app = App(name="labelwise")
    app.command(report)
    commands = [line.strip() for line in PAGE.read_text().splitlines() if line.startswith("    labelwise ")]
    assert len(commands) >= 4
    for command in commands:
        function, bound, _ = app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)
        assert function is report
        assert all(run.startswith("runs/") for run in bound.arguments["runs"])
