"""What the cells of a table say about labels: names in one column, or one column per label."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.data.readers.base import parse_json
from labelwise.data.readers.records import Records
from labelwise.data.table import ABSENT, PRESENT, UNKNOWN, natural_key

_SEPARATORS = ("|", ";", ",")
_NAMED_SEPARATORS = {"space": None, "whitespace": None, "tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}
_VALUES: dict[str, int] = {
    **dict.fromkeys(("1", "1.0", "1,0", "true", "yes", "y", "ja", "wahr"), PRESENT),
    **dict.fromkeys(("0", "0.0", "0,0", "false", "no", "n", "nein", "falsch"), ABSENT),
    "-1": UNKNOWN, "-1.0": UNKNOWN, "": UNKNOWN, "nan": UNKNOWN, "none": UNKNOWN,
}  # fmt: skip
# A list, object, set or tuple written as text. A name in round brackets is a name.
_STRUCTURED = re.compile(r"\s*(\[.*\]|\{.*\}|\(\s*['\"].*\))\s*", re.DOTALL)
_NUMPY_LIST = re.compile(r"\[(\s*('[^']*'|\"[^\"]*\"))+\s*\]")  # ['cat' 'dog'], which Python would join
# Where labelling tools put names: fiftyone's lists of objects; Label Studio has choices, rectanglelabels, ...
_OBJECT_LISTS = ("classifications", "detections", "polylines")


def cell_value(cell: Any) -> int | None:
    """The value in a column per label: 1, 0, -1, or blank for unknown; None if it is none of these.

    >>> cell_value("1"), cell_value(" 0.0"), cell_value("Yes"), cell_value(""), cell_value(None), cell_value("640")
    (1, 0, 1, -1, -1, None)
    """
    return _VALUES.get(str(cell).strip().lower())


def is_structured(cell: Any) -> bool:
    """Whether a cell holds a list or an object, as such or written as text."""
    return isinstance(cell, list | tuple | set | dict) or (isinstance(cell, str) and bool(_STRUCTURED.fullmatch(cell)))


def separator_of(cells: Iterable[Any], given: str | None = None) -> str | None:
    """What separates the names in a column of cells: of `|`, `;` and `,` the one that makes the fewest different names.
    If none occurs: `/` or white space, but only if there are fewer different words than different cells ("clear road",
    "clear water", "water road" are tags; "fire truck" and "hot dog" are names). None stands for white space, "" for no
    separator.

    >>> separator_of(["cat|dog", "cat"]), separator_of(["fire truck", "hot dog"]), separator_of(["cat"], "space")
    ('|', '', None)
    >>> separator_of(["a, b", "b, c", "a, c|d", "c, a", "b, a"])  # one stray | does not decide
    ','
    >>> separator_of(["clear road", "clear water", "water road", "clear road water"]) is None
    True
    >>> separator_of(["hot dog/cup", "cup/fork", "fork/hot dog", "cup/fork/hot dog"])
    '/'
    """
    if given is not None:
        return _NAMED_SEPARATORS.get(given, given)
    plain = {cell.strip() for cell in cells if isinstance(cell, str) and not is_structured(cell)}
    occurring = [separator for separator in _SEPARATORS if any(separator in cell for cell in plain)]
    if occurring:
        return min(occurring, key=lambda separator: len({n.strip() for cell in plain for n in cell.split(separator)}))
    for separator in ("/", None):
        words = {word.strip() for cell in plain for word in cell.split(separator)}
        if len(words) < len(plain - {""}) and (separator is None or any(separator in cell for cell in plain)):
            return separator
    return ""


def names_in(cell: Any, separator: str | None, where: str = "") -> list[str]:
    """The names in one cell: a list or an object, as such or written as text, or names between separators.

    >>> names_in("cat| dog |", "|"), names_in('["cat", "dog"]', ","), names_in("[cat, 'dog']", "|"), names_in(None, "")
    (['cat', 'dog'], ['cat', 'dog'], ['cat', 'dog'], [])
    >>> names_in('{"choices": ["cat", "hot dog"]}', ","), names_in("['cat' 'dog']", ","), names_in("(none)", ",")
    (['cat', 'hot dog'], ['cat', 'dog'], ['(none)'])
    """
    parts: Iterable[Any]
    if isinstance(cell, str):
        if is_structured(cell):
            parts = _names_of(_parsed(cell.strip(), where), where)
        else:
            parts = [cell] if separator == "" else cell.split(separator)
    else:
        parts = _names_of(cell, where)
    names = (str(part).strip() for part in parts)
    return [name for name in names if name]


def _parsed(text: str, where: str) -> Any:
    try:
        return parse_json(text, where)
    except LabelwiseError:
        pass
    if _NUMPY_LIST.fullmatch(text):
        return [part[1:-1] for part in re.findall(r"'[^']*'|\"[^\"]*\"", text)]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        if re.search(r"[][{}]", text[1:-1]):
            raise LabelwiseError(
                f"{where}: cannot read the labels {text[:60]!r}; write them as a list of names, or name another column "
                "with label_column="
            ) from None
    return [part.strip().strip("'\"") for part in text[1:-1].split(",")]  # without quotes: [cat, dog]


def _names_of(value: Any, where: str) -> Iterator[Any]:
    """The names in a value of JSON, Parquet or Python."""
    if hasattr(value, "tolist"):  # NumPy's
        value = value.tolist()
    if isinstance(value, float) and value.is_integer():  # what pandas makes of numbers in a column with gaps
        value = int(value)
    if isinstance(value, bytes):  # a binary column of Parquet
        value = value.decode("utf-8", "replace")
    if isinstance(value, dict):
        yield from _names_of_object(value, where)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            if isinstance(part, list | tuple):
                raise _not_names(part, where)
            yield from _names_of(part, where)
    elif value is not None and value == value:  # NaN is nothing
        yield value


def _names_of_object(value: dict[Any, Any], where: str) -> Iterator[Any]:
    lists = [key for key in value if key == "choices" or key in _OBJECT_LISTS or str(key).endswith("labels")]
    if not lists and "label" not in value:
        raise _not_names(value, where)
    for key in lists or ["label"]:
        yield from _names_of(value[key], where)


def _not_names(value: Any, where: str) -> LabelwiseError:
    return LabelwiseError(f"{where}: labels are a list of names, not {str(value)[:80]}")


# ---- whole columns: the label names, and per row a dict column -> value (absent where not listed)

Entries = list[dict[int, int]]


def entries_of_names(
    records: Records,
    label_column: str,
    unknown_column: str | None,
    separator: str | None,
    labels: Sequence[str] | None,
) -> tuple[list[str], Entries]:
    """Names in one column: listed = present, not listed = absent, listed in the unknown column = unknown. The labels
    are `labels` if they are all there are and more, else the names that occur, sorted. `separator`: as `separator_of`
    gives it."""
    columns = {UNKNOWN: unknown_column, PRESENT: label_column} if unknown_column else {PRESENT: label_column}
    rows: list[dict[str, int]] = [{} for _ in records.lines]
    for value, column in columns.items():  # what is listed in both is present
        for row, (line, cell) in zip(rows, records.cells(column), strict=True):
            row.update(dict.fromkeys(names_in(cell, separator, records.at(line)), value))
    occurring = {name for row in rows for name in row}
    names = sorted(occurring, key=natural_key) if labels is None or occurring - set(labels) else list(labels)
    column_of = {name: number for number, name in enumerate(names)}
    return names, [{column_of[name]: value for name, value in row.items()} for row in rows]


def entries_of_columns(records: Records, columns: Sequence[str], keep_absent: bool) -> tuple[list[str], Entries]:
    """One column per label: 1 present, 0 absent, -1 or blank unknown. The order is that of the columns."""
    if not columns:
        raise LabelwiseError(
            f"{records.file} has no labels: its columns are {', '.join(records.columns)}; add a column 'labels' with "
            "names, or one column per label"
        )
    entries: Entries = [{} for _ in records.lines]
    for number, name in enumerate(columns):
        if name not in records.values:
            raise unknown_name("label column", name, records.columns, records.file)
        for row, (line, cell) in zip(entries, records.cells(name), strict=True):
            value = cell_value(cell)
            if value is None:
                raise LabelwiseError(
                    f"{records.at(line)}: column {name!r} holds {str(cell)[:80]!r}, but a column per label holds 1 or "
                    f"yes, 0 or no, -1 or nothing. If it is not a label, add ignore_columns={name}; if it lists names, "
                    f"label_column={name}"
                )
            if value != ABSENT or keep_absent:
                row[number] = value
    return list(columns), entries
