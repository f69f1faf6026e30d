"""The rows of a table: CSV, TSV, JSON, JSONL, Parquet or a pandas DataFrame."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from labelwise.core.errors import LabelwiseError, counted, missing_extra, one_line, shortened
from labelwise.data.images import is_image
from labelwise.data.readers.base import parse_json
from labelwise.data.readers.exports import rows_of_export

if TYPE_CHECKING:
    import pandas

PREDICTION_COLUMNS = ("image", "labels", "scores")  # of what `labelwise predict --csv` writes, names between |
MAX_PARQUET_ROWS = 20_000_000
MAX_PARQUET_BYTES = 1 << 30  # of one column, decoded: a few kilobytes on disk can hold any number of copies
_VALUE_BYTES = 32  # what a value takes in Python, at least
_DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}
_LONGEST_ROW = 1000  # lines: a quote that is left open runs no farther
_LONGEST_CELL = 1000  # delimiters in a quoted cell of a line whose quotes are wrong
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


class BadCell(str):
    """A cell whose quotes are wrong, so that what belongs to it is a guess."""


@dataclass(frozen=True)
class Records:
    file: str
    values: Mapping[str, Sequence[Any]]  # by column; None where a row of JSON or Parquet has none
    lines: Sequence[int]  # the number an editor shows, from 1; in Parquet and DataFrames the number of the row
    notes: tuple[str, ...] = ()  # what was read in spite of a mistake

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.values)

    def at(self, line: int) -> str:
        return f"{self.file} row {line}"

    def cells(self, column: str) -> Iterator[tuple[int, Any]]:
        """The line and the value of each cell of a column."""
        for line, cell in zip(self.lines, self.values[column], strict=True):
            if isinstance(cell, BadCell):
                raise LabelwiseError(
                    f"{self.at(line)}: the quotes in column {column!r} are wrong ({cell[:60]!r}): is a double quote "
                    "left open there? Correct them, or leave such rows out with bad_rows=skip"
                )
            yield line, cell


def read_records(
    path: Path,
    kind: str,
    delimiter: str | None = None,
    encoding: str | None = None,
    bad_rows: Literal["error", "skip"] = "error",
) -> Records:
    """`kind`: csv, tsv, json, jsonl or parquet. `delimiter`: a character, or comma, semicolon, tab; found if not given.
    `bad_rows`: of a CSV with wrong quotes or a wrong number of fields."""
    if kind == "parquet":
        return _not_empty(_parquet(path))
    text, read_as = _text(path, encoding)
    if kind == "jsonl":
        records = _jsonl(path, text)
    elif kind == "json":
        content = parse_json(text, str(path))
        try:
            found, notes = rows_of_export(content, str(path))
            rows = list(found)
        except (AttributeError, KeyError, TypeError) as error:
            raise LabelwiseError(f"{path}: an entry has another form than its tool writes ({error!r})") from None
        records = _of_objects(path, dict(enumerate(rows, 1)), notes)
    else:
        given = delimiter or ("\t" if kind == "tsv" else None)
        records = _csv(path, text, _DELIMITERS.get(given, given) if given else None, bad_rows)
    return _not_empty(replace(records, notes=(*records.notes, *read_as)))


def _not_empty(records: Records) -> Records:
    if not records.lines:
        raise LabelwiseError(f"{records.file} is empty: it has no row of data")
    return records


def frame_records(frame: pandas.DataFrame) -> Records:
    """The rows of a DataFrame. An index that has a name, or holds texts, is a column."""
    if frame.index.name is not None or frame.index.dtype.kind in "OU" or frame.index.dtype.name.startswith("str"):
        frame = frame.reset_index()
    names = [str(name) for name in frame.columns]
    _check_columns("the DataFrame", names)
    cells = (frame.iloc[:, number] for number in range(len(names)))
    plain = (series.astype(object).where(series.notna(), None).tolist() for series in cells)
    return Records("DataFrame", dict(zip(names, plain, strict=True)), range(len(frame)))


def _text(path: Path, given: str | None) -> tuple[str, list[str]]:
    """The content of a text file, and what had to be assumed to read it."""
    content, encoding = path.read_bytes(), given or "utf-8"
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"  # what Excel calls "Unicode text"
    elif encoding.lower() in ("utf-8", "utf8"):
        encoding = "utf-8-sig"  # drops the byte order mark that Excel writes
    try:
        return content.decode(encoding), []
    except UnicodeDecodeError as error:
        if given is None and (text := _as_windows(content)) is not None:
            return text, [
                f"not UTF-8, so read as Windows' cp1252, for example {_foreign(text)!r} (encoding= names another)"
            ]
        read = error.object  # without the byte order mark
        line = read[: error.start].count(b"\n") + 1
        raise LabelwiseError(
            f"{path} row {line}: byte 0x{read[error.start]:02x} is not {encoding.removesuffix('-sig').upper()}; "
            "save the file as UTF-8, or name its encoding",
            options={"encoding": "latin-1"},
        ) from None
    except LookupError:
        raise LabelwiseError(f"unknown encoding {encoding!r}; for example utf-8, latin-1, utf-16") from None


def _as_windows(content: bytes) -> str | None:
    """What Excel on Windows saved as "CSV"; None if some bytes are no text of it, or if others are UTF-8: then the file
    is UTF-8 with a mistake in it."""
    if re.search(rb"[\x00-\x08\x0e-\x1f]", content) or not content.decode(errors="ignore").isascii():
        return None
    try:
        return content.decode("cp1252")
    except UnicodeDecodeError:
        return None


def _foreign(text: str) -> str:
    """A name or a word with a letter that is not ASCII, which shows whether the encoding is right.

    >>> _foreign("image,labels\\n1.jpg,“the” café|tea\\n")
    '“the” café'
    """
    found = re.search(r"[^\W\x00-\x7f]", text) or re.search(r"[^\x00-\x7f]", text)
    at = found.start() if found else 0
    before, after = (re.split(r'[\t\r\n,;|"]', part) for part in (text[max(0, at - 30) : at], text[at : at + 30]))
    return (before[-1] + after[0]).strip()


# ---- CSV


def _csv(path: Path, text: str, delimiter: str | None, bad_rows: str) -> Records:
    first = next((line for line in io.StringIO(text) if line.strip()), "")
    delimiter = delimiter or max(",;\t", key=first.count)
    if len(delimiter) != 1:
        raise LabelwiseError(f"delimiter={delimiter!r}: give one character, or comma, semicolon or tab")
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a cell may name thousands of labels
    found = _rows(list(io.StringIO(text, newline="")), delimiter)
    line, header = next(found, (0, []))
    if header is None:
        raise LabelwiseError(
            f"{path} row {line}: the quotes in the header are wrong; is a double quote left open there?"
        )
    columns = [field.strip() for field in header]
    if any(map(is_image, columns)):
        raise LabelwiseError(
            f"{path} row {line}: the first row must name the columns, for example 'image,labels,split'; "
            f"it holds {columns[0]!r}"
        )
    rows: dict[int, Sequence[str]] = {}  # by their lines
    mended: dict[int, str] = {}  # the column whose quotes are wrong
    skipped: list[int] = []
    for line, fields in found:
        bad = None if fields is None else next((n for n, field in enumerate(fields) if type(field) is BadCell), None)
        if bad_rows == "skip" and (fields is None or bad is not None or len(fields) != len(columns)):
            skipped.append(line)
            continue
        if fields is None:
            raise LabelwiseError(
                f"{path} row {line}: the quotes are wrong; is a double quote left open there? Correct them, or leave "
                "such rows out with bad_rows=skip"
            )
        if len(fields) != len(columns):
            raise LabelwiseError(
                f"{path} row {line}: {counted(len(fields), 'field', 'fields')} where the header has {len(columns)} "
                f'({shortened(columns, 20)}); quote a field that holds {delimiter!r}: "cat{delimiter}dog", or leave '
                "such rows out with bad_rows=skip"
            )
        if bad is not None:
            mended[line] = columns[bad]
        rows[line] = fields
    notes = [f"{counted(len(skipped), 'row is', 'rows are')} left out, the first: row {skipped[0]}"] if skipped else []
    if mended:
        where = shortened([f"row {line}, {name!r}" for line, name in mended.items()], 3)
        notes.append(f"read past {counted(len(mended), 'cell', 'cells')} with wrong quotes ({where})")
    values = zip(*rows.values(), strict=True) if rows else ([] for _ in columns)
    # Spreadsheets write empty columns, too.
    named = [(name, cells) for name, cells in zip(columns, values, strict=True) if name or any(map(str.strip, cells))]
    _check_columns(path, (name for name, _ in named))
    return Records(str(path), dict(named), list(rows), tuple(notes))


def _rows(lines: Sequence[str], delimiter: str) -> Iterator[tuple[int, list[str] | None]]:
    """The number of the first line and the fields of each row that is not blank. Where the quotes are wrong, the row is
    taken for one line: its wrong cell is a `BadCell`, or there are None where even that cannot be told."""
    width, position = 0, 0
    while position < len(lines):
        start = position
        block = map(lines.__getitem__, range(start, min(start + _LONGEST_ROW, len(lines))))
        reader = csv.reader(block, delimiter=delimiter, strict=True)
        try:
            for fields in reader:
                end = start + reader.line_num  # a quoted field may hold line breaks
                if width and end - position > 1 and _swallowed(lines[position + 1 : end], fields, width, delimiter):
                    raise csv.Error
                if any(field.strip() for field in fields):
                    width = width or len(fields)
                    yield position + 1, fields
                position = end
        except csv.Error:
            if position == start:  # else the next round starts with this row, and has more lines to look at
                yield position + 1, _mended(lines[position].rstrip("\r\n"), delimiter, width) if width else None
                position += 1


def _swallowed(lines: Sequence[str], fields: Sequence[str], width: int, delimiter: str) -> bool:
    """Whether a quote that was left open has swallowed the rows after it."""
    if len(fields) != width:
        return True
    return any(len(parts) >= width and any(map(is_image, parts)) for parts in (line.split(delimiter) for line in lines))


def _mended(line: str, delimiter: str, width: int) -> list[str] | None:
    """The fields of a line with one wrong cell: those before it, counted from the left, and after it, from the right.

    >>> _mended('1.jpg,"a "big" dog, asleep",dog', ",", 3)
    ['1.jpg', '"a "big" dog, asleep"', 'dog']
    """
    parts = line.split(delimiter)
    before, parts = _proper_fields(parts, delimiter, width)
    if len(before) == width:
        return None if parts else before
    after, parts = _proper_fields(parts, delimiter, width - len(before) - 1, backwards=True)
    if not parts or len(before) + 1 + len(after) != width:
        return None
    return [*before, BadCell(delimiter.join(parts)), *after[::-1]]


def _proper_fields(parts: list[str], delimiter: str, most: int, backwards: bool = False) -> tuple[list[str], list[str]]:
    """Fields whose quotes are right, up to `most`, from one end of a line that was split at every delimiter, and the
    parts that are left."""
    fields: list[str] = []
    while parts and len(fields) < most:
        edge = parts[-1].endswith('"') if backwards else parts[0].startswith('"')
        sizes = range(1, min(len(parts), _LONGEST_CELL) + 1) if edge else [1]
        ends = ((parts[-size:], parts[:-size]) if backwards else (parts[:size], parts[size:]) for size in sizes)
        for taken, left in ends:
            cell = delimiter.join(taken)
            if not edge or _QUOTED.fullmatch(cell):
                fields.append(cell[1:-1].replace('""', '"') if edge else cell)
                parts = left
                break
        else:
            break
    return fields, parts


# ---- JSON


def _jsonl(path: Path, text: str) -> Records:
    objects: dict[int, dict[str, Any]] = {}  # by their lines
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: U+2028 may stand inside a JSON string
        if not line.strip():
            continue
        value = parse_json(line, f"{path} row {number}")
        if not isinstance(value, dict):
            raise LabelwiseError(f'{path} row {number}: expected an object like {{"image": ..., "labels": [...]}}')
        objects[number] = value
    return _of_objects(path, objects)


def _of_objects(path: Path, objects: Mapping[int, Mapping[str, Any]], notes: Sequence[str] = ()) -> Records:
    columns = dict.fromkeys(key for entry in objects.values() for key in entry)  # in order of appearance
    values = {name: [entry.get(name) for entry in objects.values()] for name in columns}
    return Records(str(path), values, list(objects), tuple(notes))


# ---- Parquet


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
        columns = _ParquetColumns(path, pyarrow)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise LabelwiseError(f"{path} is not a readable Parquet file: {one_line(error)}") from None
    return Records(str(path), columns, range(1, columns.rows + 1))


class _ParquetColumns(Mapping[str, Sequence[Any]]):
    """The columns of a Parquet file, each read when it is asked for, by row groups and within limits: a column that
    nobody needs may hold the images themselves, and a small file may claim to hold any number of values.

    Texts stay coded by a dictionary until they are shared Python strings: a million copies of one take no more.
    """

    def __init__(self, path: Path, pyarrow: Any) -> None:
        self._path, self._pyarrow = path, pyarrow
        about = pyarrow.parquet.read_metadata(path)
        self.rows: int = about.num_rows
        if self.rows > MAX_PARQUET_ROWS:
            raise self._too_large(f"{self.rows:,} rows, {MAX_PARQUET_ROWS:,} are allowed")
        leaves = [about.schema.column(number) for number in range(about.num_columns)]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        self._file = pyarrow.parquet.ParquetFile(path, metadata=about, read_dictionary=texts)
        self._names = list(self._file.schema_arrow.names)
        _check_columns(path, self._names)
        self._bytes: Counter[str] = Counter()  # decoded, by column
        for group in map(about.row_group, range(about.num_row_groups)):
            for number, leaf in enumerate(leaves):
                chunk = group.column(number)
                self._bytes[leaf.path.partition(".")[0]] += (
                    chunk.total_uncompressed_size + _VALUE_BYTES * chunk.num_values
                )

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Sequence[Any]:
        values: list[Any] = []
        size = self._bytes[name]
        try:
            self._check_size(name, size)  # before anything is decoded, and after each part
            for batch in self._file.iter_batches(columns=[name]):
                found = _values(batch.column(0), self._pyarrow)
                values += found
                size += sum(map(_length, found))
                self._check_size(name, size)
        except (self._pyarrow.ArrowInvalid, OSError) as error:
            raise LabelwiseError(f"{self._path} is not a readable Parquet file: {one_line(error)}") from None
        return values

    def _check_size(self, name: str, size: int) -> None:
        if size > MAX_PARQUET_BYTES:
            raise self._too_large(f"column {name!r} holds more than {MAX_PARQUET_BYTES / 2**30:g} GB")

    def _too_large(self, found: str) -> LabelwiseError:
        return LabelwiseError(f"{self._path}: {found}; write it as several files, without columns that are not needed")


def _values(array: Any, pyarrow: Any) -> list[Any]:
    """The Python values of an Arrow array; equal texts are one object."""
    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        words = array.dictionary.to_pylist()
        return [None if code is None else words[code] for code in array.indices.to_pylist()]
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        inner = iter(_values(array.flatten(), pyarrow))
        return [None if size is None else list(islice(inner, size)) for size in array.value_lengths().to_pylist()]
    plain: list[Any] = array.to_pylist()
    return plain


def _length(value: Any) -> int:
    """Of a text, or of the texts in a list."""
    if isinstance(value, str):
        return len(value)
    return sum(map(_length, value)) if isinstance(value, list) else 0


def _check_columns(path: Path | str, columns: Iterable[str]) -> None:
    for name, count in Counter(columns).items():
        if count > 1:
            raise LabelwiseError(f"{path}: two columns are called {name!r}; column names must be unique")
