"""Results as tables: on a terminal, as a pandas frame, a CSV file, and HTML for notebooks."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

from labelwise.core.errors import LabelwiseError

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, ConsoleOptions, RenderableType

_NAME_WIDTH = 10  # characters: a longer name is continued below where there is no more room


@dataclass(frozen=True)
class TerminalTable:
    """A table for rich that fits the terminal. Names are wrapped, numbers never cut; columns without room are listed.

    Args:
        header: The names of the columns.
        rows: Cells, as they are to be printed.
        title: Above the table.
        caption: Below the table.
        names: How many columns, from the left, hold names; the others hold numbers.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str | None = None
    caption: str | None = None
    names: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.cells import cell_len
        from rich.table import Table
        from rich.text import Text  # not markup: names may hold brackets

        def widths(words: Callable[[str], list[str]]) -> list[int]:
            columns = zip(self.header, *self.rows, strict=True)
            return [max([1, *map(cell_len, [*words(name), *cells])]) for name, *cells in columns]

        needed, shown = widths(lambda name: [name]), len(self.header)
        if sum(needed) + 2 * shown > options.max_width:
            needed = [min(n, _NAME_WIDTH) for n in needed[: self.names]] + widths(str.split)[self.names :]
        while shown > self.names + 1 and sum(needed[:shown]) + 2 * shown > options.max_width:
            shown -= 1
        table = Table(title=self.title, title_justify="left", box=None)
        for number, name in enumerate(self.header[:shown]):
            is_name = number < self.names
            side: Literal["left", "right"] = "left" if is_name else "right"
            title = Text(name if is_name else fill(name, needed[number]))
            table.add_column(title, justify=side, no_wrap=not is_name, min_width=needed[number], overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row[:shown]))
        yield table
        for line in [
            self.caption,
            f"columns left out (narrow terminal): {', '.join(self.header[shown:])}" if shown < len(needed) else None,
        ]:
            if line:
                yield Text(f" {line}", style="italic")


def to_frame(rows: Sequence[Mapping[str, Any]], index: str | None = None) -> pandas.DataFrame:
    """A pandas frame with one row per mapping, by `index` if given. pandas is optional: nothing else here needs it."""
    try:
        import pandas
    except ImportError:
        raise LabelwiseError("to_pandas needs the package 'pandas'; install it with: pip install pandas") from None
    frame = pandas.DataFrame(list(rows))
    return frame if index is None or frame.empty else frame.set_index(index)


def is_formula(cell: object) -> bool:
    """Whether a spreadsheet would compute a cell of a CSV file instead of showing it.

    >>> is_formula("=1+1"), is_formula("-cat"), is_formula(-1.5), is_formula("cat=dog")
    (True, True, False, False)
    """
    return isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Write rows as CSV. Without rows only the `columns` are written, so that nothing of an earlier file remains.

    These files are read by people, in spreadsheets: names that would be formulas there get an apostrophe.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        if header := list(rows[0]) if rows else list(columns):
            writer = csv.DictWriter(file, header)
            writer.writeheader()
            writer.writerows(
                {key: f"'{cell}" if is_formula(cell) else cell for key, cell in row.items()} for row in rows
            )


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table for `_repr_html_`; every cell is escaped, numbers are aligned to the right.

    >>> html_table(["label", "AP"], [["<b>", 0.5]])
    '<table><tr><th>label</th><th>AP</th></tr><tr><td>&lt;b&gt;</td><td style="text-align:right">0.50</td></tr></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td style="text-align:right">{f"{value:,}" if isinstance(value, int) else f"{value:.2f}"}</td>'
    return f"<td>{escape('-' if value is None else str(value))}</td>"
