"""Names of files and labels reach the terminal as text, whatever they hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

import labelwise
from labelwise.core.terminal import open_console, say, visible

OBEYED = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@given(st.text(st.characters()))
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    assert not OBEYED.search(visible(text))
    assert visible(visible(text)) == visible(text)
    if text.isprintable():
        assert visible(text) == text


def test_a_line_is_printed_without_markup_or_wrapping(capsys: pytest.CaptureFixture[str]) -> None:
    say("[red]kept[/red] " + "x" * 300 + "\x1b]0;title\x07", stderr=True)
    assert capsys.readouterr().err == "[red]kept[/red] " + "x" * 300 + r"\x1b]0;title\x07" + "\n"


def test_a_console_keeps_its_own_colours_only() -> None:
    console = open_console(force_terminal=True, color_system="standard", width=80)
    table = Table("label")
    table.add_row("[red]ours[/red] theirs\x1b[32m\u202e")
    with console.capture() as captured:
        console.print(table)
        console.print("a\x1b[2Jb", markup=False, highlight=False)
    printed = captured.get()
    assert "\x1b[31m" in printed
    assert r"theirs\x1b" in printed  # and no wider than the terminal
    assert r"a\x1b[2Jb" in printed
    assert "\x1b[32m" not in printed
    assert "\u202e" not in printed


def test_nothing_else_prints() -> None:
    """`ruff` forbids print; this finds other ways."""
    source = Path(labelwise.__file__).parent
    other = re.compile(r"(?<!Visible)Console\(|std(out|err)\.write")
    allowed = {"analysis/speed.py"}  # a number, for the process that started it
    found = {str(f.relative_to(source)) for f in source.rglob("*.py") if other.search(f.read_text("utf-8"))}
    assert found == allowed
