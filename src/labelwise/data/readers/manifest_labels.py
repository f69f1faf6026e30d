"""What a manifest says about labels: names in one column, or one column per label."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.data.readers.records import Records
from labelwise.data.table import ABSENT, PRESENT, UNKNOWN

_SEPARATORS = ("|", ";", ",")
_NAMED_SEPARATORS = {"space": None, "whitespace": None, "tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}
_VALUES: dict[str, int] = {
    "1": PRESENT, "1.0": PRESENT, "true": PRESENT,
    "0": ABSENT, "0.0": ABSENT, "false": ABSENT,
    "-1": UNKNOWN, "-1.0": UNKNOWN, "": UNKNOWN, "nan": UNKNOWN, "none": UNKNOWN,
}  # fmt: skip


def cell_value(cell: Any) -> int | None:
    """The value in a column per label: 1, 0, -1, or blank for unknown; None if it is none of these.

    >>> cell_value("1"), cell_value(" 0.0"), cell_value(""), cell_value(None), cell_value("640")
    (1, 0, -1, -1, None)
    """
    return _VALUES.get(str(cell).strip().lower())


def separator_of(cells: Iterable[Any], given: str | None = None) -> str | None:
    """What separates the names in a column of cells: the first of `|`, `;`, `,` that occurs in any cell. If none
    does: white space, but only if there are fewer different words than different cells ("clear road", "clear water",
    "water road" are tags; "fire truck" and "hot dog" are names). None stands for white space, "" for no separator.

    >>> separator_of(["cat|dog", "cat"]), separator_of(["fire truck", "hot dog"]), separator_of(["cat"], "space")
    ('|', '', None)
    >>> separator_of(["clear road", "clear water", "water road", "clear road water"]) is None
    True
    """
    if given is not None:
        return _NAMED_SEPARATORS.get(given, given)
    plain = {cell.strip() for cell in cells if isinstance(cell, str) and not _is_bracketed(cell)}
    for separator in _SEPARATORS:
        if any(separator in cell for cell in plain):
            return separator
    words = {word for cell in plain for word in cell.split()}
    return None if len(words) < len(plain - {""}) else ""


def names_in(cell: Any, separator: str | None, where: str = "") -> list[str]:
    """The names in one cell: a list, a list written as text, or names between separators.

    >>> names_in("cat| dog |", "|"), names_in('["cat", "dog"]', ","), names_in("[cat, 'dog']", "|"), names_in(None, "")
    (['cat', 'dog'], ['cat', 'dog'], ['cat', 'dog'], [])
    """
    if cell is None:
        return []
    if isinstance(cell, str):
        parts = _list_in_text(cell) if _is_bracketed(cell) else [cell] if separator == "" else cell.split(separator)
    else:
        parts = list(cell) if isinstance(cell, Sequence) else [cell]
    nested = next((part for part in parts if isinstance(part, dict | list)), None)
    if nested is not None:
        raise LabelwiseError(f"{where}: labels are a list of names, not {nested!r}")
    names = (str(part).strip() for part in parts if part is not None)
    return [name for name in names if name]


def _is_bracketed(cell: str) -> bool:
    return cell.strip().startswith("[") and cell.strip().endswith("]")


def _list_in_text(cell: str) -> list[Any]:
    try:
        return list(json.loads(cell))
    except json.JSONDecodeError:  # Python's way: ['cat', 'dog'], or without quotes
        return [part.strip().strip("'\"") for part in cell.strip()[1:-1].split(",")]


# ---- whole columns: the label names, and per row a dict column -> value (absent where not listed)

Entries = list[dict[int, int]]


def entries_of_names(
    records: Records,
    label_column: str,
    unknown_column: str | None,
    separator: str | None,
    labels: Sequence[str] | None,
) -> tuple[list[str], Entries]:
    """Names in one column: listed = present, not listed = absent, listed in the unknown column = unknown. Without
    `labels`, the names that occur, sorted."""
    columns = {UNKNOWN: unknown_column, PRESENT: label_column} if unknown_column else {PRESENT: label_column}
    found = separator_of([cell for column in columns.values() for _, cell in records.cells(column)], separator)
    rows: list[dict[str, int]] = [{} for _ in records.rows]
    for value, column in columns.items():  # what is listed in both is present
        for row, (line, cell) in zip(rows, records.cells(column), strict=True):
            row.update(dict.fromkeys(names_in(cell, found, records.at(line)), value))
    names = list(labels) if labels is not None else sorted({name for row in rows for name in row})
    column_of = {name: number for number, name in enumerate(names)}
    for row, line in zip(rows, records.lines, strict=True):
        for name in row:
            if name not in column_of:
                raise unknown_name("label", name, names, records.at(line))
    return names, [{column_of[name]: value for name, value in row.items()} for row in rows]


def entries_of_columns(records: Records, columns: Sequence[str], keep_absent: bool) -> tuple[list[str], Entries]:
    """One column per label: 1 present, 0 absent, -1 or blank unknown. The order is that of the columns."""
    if not columns:
        raise LabelwiseError(
            f"{records.file} has no labels: its columns are {', '.join(records.columns)}; add a column 'labels' with "
            "names, or one column per label"
        )
    entries: Entries = [{} for _ in records.rows]
    for number, name in enumerate(columns):
        if name not in records.columns:
            raise unknown_name("label column", name, records.columns, records.file)
        for row, (line, cell) in zip(entries, records.cells(name), strict=True):
            value = cell_value(cell)
            if value is None:
                raise LabelwiseError(
                    f"{records.at(line)}: column {name!r} holds {cell!r}, but a column per label holds 1, 0, -1 or "
                    f"nothing. If it is not a label, add ignore_columns={name}; if it lists names, label_column={name}"
                )
            if value != ABSENT or keep_absent:
                row[number] = value
    return list(columns), entries
