"""The rows of a CSV, TSV, JSONL or Parquet file, and what their cells say about labels."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise.core.errors import LabelwiseError, counted, missing_extra, unknown_name
from labelwise.data.images import is_image
from labelwise.data.table import ABSENT, PRESENT, UNKNOWN

PREDICTION_COLUMNS = ("image", "labels", "scores")  # of what `labelwise predict --csv` writes, names between |
_SEPARATORS = ("|", ";", ",")
_NAMED_SEPARATORS = {"space": None, "whitespace": None, "tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}
_VALUES: dict[str, int] = {
    "1": PRESENT, "1.0": PRESENT, "true": PRESENT,
    "0": ABSENT, "0.0": ABSENT, "false": ABSENT,
    "-1": UNKNOWN, "-1.0": UNKNOWN, "": UNKNOWN, "nan": UNKNOWN, "none": UNKNOWN,
}  # fmt: skip
_DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}


@dataclass(frozen=True)
class Records:
    file: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]  # one value per column; None where a row of JSON or Parquet has none
    lines: list[int]  # the number an editor shows, from 1; in Parquet the number of the row

    def at(self, line: int) -> str:
        return f"{self.file} row {line}"

    def cells(self, column: str) -> Iterator[tuple[int, Any]]:
        """The line and the value of each cell of a column."""
        number = self.columns.index(column)
        return ((line, row[number]) for line, row in zip(self.lines, self.rows, strict=True))


def read_records(path: Path, kind: str, delimiter: str | None = None, encoding: str = "utf-8") -> Records:
    """`kind`: csv, tsv, jsonl or parquet. `delimiter`: a character, or comma, semicolon, tab; found if not given."""
    if kind == "parquet":
        records = _parquet(path)
    elif kind == "jsonl":
        records = _jsonl(path, _text(path, encoding))
    else:
        given = delimiter or ("\t" if kind == "tsv" else None)
        records = _csv(path, _text(path, encoding), _DELIMITERS.get(given, given) if given else None)
    if not records.rows:
        raise LabelwiseError(f"{path} is empty: it has no row of data")
    return records


def _text(path: Path, encoding: str) -> str:
    content = path.read_bytes()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"  # what Excel calls "Unicode text"
    elif encoding.lower() in ("utf-8", "utf8"):
        encoding = "utf-8-sig"  # drops the byte order mark that Excel writes
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise LabelwiseError(
            f"{path} row {line}: byte 0x{content[error.start]:02x} is not {encoding.removesuffix('-sig').upper()}; "
            "save the file as UTF-8, or name its encoding, for example encoding=latin-1"
        ) from None
    except LookupError:
        raise LabelwiseError(f"unknown encoding {encoding!r}; for example utf-8, latin-1, utf-16") from None


def _csv(path: Path, text: str, delimiter: str | None) -> Records:
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = delimiter or max(",;\t", key=first.count)
    if len(delimiter) != 1:
        raise LabelwiseError(f"delimiter={delimiter!r}: give one character, or comma, semicolon or tab")
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a cell may name thousands of labels
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: dict[int, tuple[str, ...]] = {}  # by their lines
    columns: tuple[str, ...] = ()
    last_line = 0  # of the row before: a quoted field may hold line breaks
    try:
        for fields in reader:
            line, last_line = last_line + 1, reader.line_num
            if not any(field.strip() for field in fields):
                continue
            if not columns:
                columns = tuple(field.strip() for field in fields)
                if any(is_image(name) for name in columns):
                    raise LabelwiseError(
                        f"{path} row {line}: the first row must name the columns, for example 'image,labels,split'; "
                        f"it holds {columns[0]!r}"
                    )
                _check_columns(path, columns)
                continue
            if len(fields) != len(columns):
                raise LabelwiseError(
                    f"{path} row {line}: {counted(len(fields), 'field', 'fields')} where the header has {len(columns)} "
                    f'({", ".join(columns)}); quote a field that holds {delimiter!r}: "cat{delimiter}dog"'
                )
            rows[line] = tuple(fields)
    except csv.Error as error:
        raise LabelwiseError(f"{path} row {last_line + 1}: {error}; is a double quote left open there?") from None
    return Records(str(path), columns, list(rows.values()), list(rows))


def _jsonl(path: Path, text: str) -> Records:
    objects: dict[int, dict[str, Any]] = {}  # by their lines
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: U+2028 may stand inside a JSON string
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise LabelwiseError(f"{path} row {number}: not JSON ({error.msg} at column {error.colno})") from None
        if not isinstance(value, dict):
            raise LabelwiseError(f'{path} row {number}: expected an object like {{"image": ..., "labels": [...]}}')
        objects[number] = value
    columns = tuple(dict.fromkeys(key for entry in objects.values() for key in entry))  # in order of appearance
    rows = [tuple(entry.get(name) for name in columns) for entry in objects.values()]
    return Records(str(path), columns, rows, list(objects))


def require_pyarrow() -> Any:
    """The package, which is an extra, with `pyarrow.parquet`."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise missing_extra("pyarrow", "parquet") from None
    return pyarrow


def _parquet(path: Path) -> Records:
    pyarrow = require_pyarrow()
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise LabelwiseError(f"{path} is not a readable Parquet file: {error}") from None
    columns = tuple(table.column_names)
    _check_columns(path, columns)
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return Records(str(path), columns, rows, list(range(1, len(rows) + 1)))


def _check_columns(path: Path, columns: Iterable[str]) -> None:
    for name, count in Counter(columns).items():
        if count > 1:
            raise LabelwiseError(f"{path}: two columns are called {name!r}; column names must be unique")


# ---- cells


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
    parts: Iterable[Any]
    if isinstance(cell, str) and _is_bracketed(cell):
        try:
            parts = list(json.loads(cell))
        except json.JSONDecodeError:  # Python's way: ['cat', 'dog'], or without quotes
            parts = [part.strip().strip("'\"") for part in cell.strip()[1:-1].split(",")]
    elif isinstance(cell, str) and separator != "":
        parts = cell.split(separator)
    else:
        parts = [cell] if isinstance(cell, str) or not isinstance(cell, Sequence) else cell
    nested = next((part for part in parts if isinstance(part, dict | list)), None)
    if nested is not None:
        raise LabelwiseError(f"{where}: labels are a list of names, not {nested!r}")
    names = (str(part).strip() for part in parts if part is not None)
    return [name for name in names if name]


def _is_bracketed(cell: str) -> bool:
    return cell.strip().startswith("[") and cell.strip().endswith("]")


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
