"""Every sweep that the pages show is one that the command line takes, down to the last option."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cyclopts import App

from labelwise.cli.sweep import sweep

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("guides/sweep.md", "research/hsq-figures.md"))
COMMANDS = re.findall(r"^    labelwise sweep (.*)$", PAGES, re.MULTILINE)


@pytest.mark.parametrize(("command", "runs"), zip(COMMANDS, [6, 5, 15, 6], strict=True))
def test_the_pages_sweeps_can_be_planned(
    command: str, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    App(default_command=sweep)([*shlex.split(command), "--dry-run"], result_action="return_value")
    assert capsys.readouterr().out.splitlines()[-1] == f"{runs} runs"
