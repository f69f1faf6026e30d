"""The rows of a CSV, TSV, JSONL or Parquet file, each with the line it starts on."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise.core.errors import LabelwiseError, missing_extra
from labelwise.data.images import is_image

PREDICTION_COLUMNS = ("image", "labels", "scores")  # of what `labelwise predict --csv` writes, names between |
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


def sniff_delimiter(header: str) -> str:
    """The one of tab, semicolon and comma that the header line has most of.

    >>> sniff_delimiter("image;labels;split"), sniff_delimiter("image")
    (';', ',')
    """
    return max(",;\t", key=header.count)


def _csv(path: Path, text: str, delimiter: str | None) -> Records:
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = delimiter or sniff_delimiter(first)
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
                    f"{path} row {line}: {len(fields)} fields where the header has {len(columns)} "
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


def _parquet(path: Path) -> Records:
    try:
        import pyarrow.parquet
    except ImportError:
        raise missing_extra("pyarrow", "parquet") from None
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
