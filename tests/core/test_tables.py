"""Tables on terminals of any width."""

from __future__ import annotations

import pytest
from rich.console import Console

from labelwise.core.tables import TerminalTable

LONG = "wheel barrow under snow [outside]"
ROWS = [[LONG, "100.00", "0.325", "1,234"], ["狗", "9.50", "-", "7"]]
HEADER = ["label", "AP", "threshold of the label", "positives"]


def printed(table: TerminalTable, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [28, 40, 60, 80, 200])
def test_a_table_fits_the_terminal_and_cuts_nothing(width: int) -> None:
    lines = printed(TerminalTable(HEADER, ROWS, title="labels", caption="of two"), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    left_out = " ".join(text.split()).partition("columns left out (narrow terminal): ")[2]
    for name, *cells in zip(HEADER[1:], *(row[1:] for row in ROWS), strict=True):
        assert all(cell in text.split() for cell in cells) or name in left_out
    assert set(LONG.split()) < set(text.split())
    assert "…" not in text
    assert bool(left_out) == (width < 42)


def test_a_table_without_rows_and_one_of_two_names() -> None:
    for width in (8, 40):
        assert "".join(printed(TerminalTable(["label", ""], []), width)).split() == ["label"]
    (_, row) = printed(TerminalTable(["a", "b", "together"], [["cat", "dog", "8"]], names=2), 40)
    assert row.split() == ["cat", "dog", "8"]
