"""What the cells of a table say about labels: names in one column, or one column per label."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from labelwise.core.errors import LabelwiseError, shortened, unknown_name
from labelwise.data.readers.base import parse_json
from labelwise.data.readers.records import Records
from labelwise.data.table import ABSENT, PRESENT, UNKNOWN, natural_key

_SEPARATORS = ("|", ";", ",")
_NAMED_SEPARATORS = {"space": None, "whitespace": None, "tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}
_MARKS = ("x", "✓", "✔", "☑")  # of a checklist
_BLANK = ("", "nan", "none")
_VALUES: dict[str, int] = {
    **dict.fromkeys(("1", "1.0", "1,0", "true", "yes", "y", "ja", "wahr", *_MARKS), PRESENT),
    **dict.fromkeys(("0", "0.0", "0,0", "false", "no", "n", "nein", "falsch"), ABSENT),
    **dict.fromkeys(("-1", "-1.0", "-1,0", *_BLANK), UNKNOWN),
}
# A list, object, set or tuple written as text. A name in round brackets is a name.
_STRUCTURED = re.compile(r"\s*(\[.*\]|\{.*\}|\(\s*['\"].*\))\s*", re.DOTALL)
_NUMPY_LIST = re.compile(r"\[(\s*('[^']*'|\"[^\"]*\"))+\s*\]")  # ['cat' 'dog'], which Python would join
# Where labelling tools put names: fiftyone's lists of objects; Label Studio has choices, rectanglelabels, ...
_OBJECT_LISTS = ("classifications", "detections", "polylines")


def cell_value(cell: Any) -> int | None:
    """The value in a column per label: 1, 0, -1, or blank for unknown; None if it is none of these.

    >>> cell_value("1"), cell_value(" 0.0"), cell_value("X"), cell_value(""), cell_value(None), cell_value("640")
    (1, 0, 1, -1, -1, None)
    """
    return _VALUES.get(_plain(cell))


def _plain(cell: Any) -> str:
    return str(cell).strip().lower()


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
                f"{where}: cannot read the labels {text[:60]!r}; write them as a list of names, or name another column",
                options={"label_column": ...},
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


def entries_of_columns(
    records: Records, columns: Sequence[str], keep_absent: bool, blank: Literal["absent", "unknown"] | None
) -> tuple[list[str], Entries, str]:
    """One column per label: 1 present, 0 absent, -1 unknown. The order is that of the columns. A blank is what `blank`
    says, or else unknown, but absent in a checklist; that is told as the last thing returned."""
    if not columns:
        raise LabelwiseError(
            f"{records.file} has no labels: its columns are {', '.join(records.columns)}; add a column 'labels' with "
            "names, or one column per label"
        )
    for name in columns:
        if name not in records.values:
            raise unknown_name("label column", name, records.columns, records.file)
    texts = [{_plain(cell) for cell in records.values[name]} for name in columns]
    values = {text: _VALUES.get(text) for text in set().union(*texts)}
    assumed = []
    if not blank and values.keys() & {*_BLANK} and (meaning := _meaning_of_blank(values, records.file)):
        assumed, blank = [meaning], "absent"
    values |= dict.fromkeys(_BLANK, ABSENT if blank == "absent" else UNKNOWN)
    counts = {text for text, value in values.items() if value is None and text.isdecimal() and int(text) > 1}
    says_no = any(values[text] == ABSENT for column in texts for text in column)  # else 2 may be a code for no
    if says_no and len(columns) <= _MOST_COLUMNS and sum(bool(counts & column) for column in texts) > 1:
        values |= dict.fromkeys(counts, PRESENT)
        assumed.append("a number above 1 is a count, so the label is present")
    entries: Entries = [{} for _ in records.lines]
    for number, name in enumerate(columns):
        for row, (line, cell) in zip(entries, records.cells(name), strict=True):
            value = values[_plain(cell)]
            if value is None:
                raise LabelwiseError(
                    f"{records.at(line)}: column {name!r} holds {str(cell)[:80]!r}, but a column per label holds 1 or "
                    f"yes, 0 or no, -1 or nothing. If it is not a label, leave it out; if it lists names, say so",
                    options={"ignore_columns": name, "label_column": name},
                    either=True,
                )
            if value != ABSENT or keep_absent:
                row[number] = value
    return list(columns), entries, "; ".join(assumed)


def _meaning_of_blank(values: Mapping[str, int | None], file: str) -> str:
    """What is assumed about blanks: "" if other cells say no, and blanks are unknown."""
    said = {text: value for text, value in values.items() if text not in _BLANK}
    if ABSENT not in said.values() and UNKNOWN not in said.values() and PRESENT in said.values():
        return "a blank is no, because no cell says no (blank=unknown: it is not known)"
    if said.keys() & {*_MARKS}:
        raise LabelwiseError(
            f"{file}: some labels are marked, others say no, and some are blank; say what a blank is with blank=absent "
            "or blank=unknown"
        )
    return ""


# ---- which column lists the names

_LOOKED_AT = 100  # cells
_MOST_COLUMNS = 1000  # with more, there is one column per label
# Names of label columns that may as well be labels: only if they hold something else than 1 and 0.
LIKELY_LABELS = ("choices", "choice", "ground_truth", "targets", "target", "attribute_ids")


class _Column(NamedTuple):
    """What a column looks like; a column of Parquet is read once for it."""

    is_label: bool  # 1, 0 and their like, or nothing. With a mistake in it, it is still the column of a label
    has_lists: bool  # or objects
    has_words: bool
    repeats: bool  # few different names for so many cells, as whole cells or in lists
    has_several: bool  # names in a cell
    names: frozenset[str]
    counts_rows: bool  # each row has another value
    example: str

    @classmethod
    def of(cls, cells: Sequence[Any]) -> Self:
        texts = [str(cell).strip() for cell in cells if _plain(cell) not in _BLANK]
        separator = separator_of(texts)
        names = [
            name.strip() for text in texts for name in (text.split(separator) if separator in _SEPARATORS else [text])
        ]
        return cls(
            is_label=2 * sum(cell_value(text) is not None for text in texts) >= len(texts),
            has_lists=any(map(is_structured, cells[:_LOOKED_AT])),
            has_words=any(map(str.isalpha, "".join(texts[:_LOOKED_AT]))),
            repeats=2 <= len(set(names)) <= len(names) / 2,
            has_several=len(names) > len(texts),
            names=frozenset(names),
            counts_rows=len(set(texts)) == len(cells) > 2,
            example=" ".join(texts[0].split())[:30] if texts else "",
        )


def numbered_columns(records: Records, others: Sequence[str], usual: Callable[[str], bool]) -> list[str]:
    """The columns of `tag 1`, `tag 2` and `tag 3`, which list an image's labels together; [] if there are none. Their
    common name is `usual` for labels: `rater 1` and `rater 2` may disagree, and answers to questions are no labels."""
    if len(others) > _MOST_COLUMNS:
        return []
    groups: dict[str, list[str]] = {}
    for name in others:
        numbered = re.fullmatch(r"(.*[^\W\d_])[\s_-]*\d+", name.strip())
        if numbered and usual(numbered[1]):
            groups.setdefault(numbered[1].lower(), []).append(name)
    for names in groups.values():
        filled = [column for name in names if (column := _Column.of(records.values[name])).example]
        if len(names) > 1 and filled and all(column.has_words and not column.is_label for column in filled):
            return names
    return []


def joined_columns(records: Records, columns: Sequence[str], given: str | None) -> tuple[list[list[str]], str]:
    """The names that each row has in all of `columns`, and what was found to separate names within a cell. Without a
    `given` separator, only a usual one separates them: a column for each name may well hold `hot dog`."""
    names: list[list[str]] = [[] for _ in records.lines]
    found = []
    for column in columns:
        separator = separator_of(records.values[column], given)
        if given is None and separator not in _SEPARATORS:
            separator = ""
        elif given is None and separator not in found:
            found.append(separator)
        for row, (line, cell) in zip(names, records.cells(column), strict=True):
            if cell_value(cell) != UNKNOWN:
                row += names_in(cell, separator, records.at(line))
    return names, " and ".join(map(repr, found))


def column_of_names(
    records: Records, others: Sequence[str], plain: Callable[[str], str]
) -> tuple[str | None, list[str]]:
    """The column that lists names, if no column is called so: the only one with lists or objects in its cells, else one
    that is called likely, else the only one there is, else the only one whose names repeat. None if there is one column
    per label; then also columns that cannot be one, because they number the rows."""
    if len(others) > _MOST_COLUMNS:
        return None, []
    columns = {name: _Column.of(records.values[name]) for name in others}
    texts = {name: column for name, column in columns.items() if not column.is_label}
    listed = [name for name, column in texts.items() if column.has_lists]
    likely = [name for name in texts if plain(name) in LIKELY_LABELS]
    for candidates in (listed, likely, others):
        if len(candidates) == 1 and candidates[0] in texts:
            return candidates[0], []
    worded = [name for name, column in texts.items() if column.has_words]
    repeated = [name for name in worded if texts[name].repeats]
    # Of `tag 1`, `tag 2` and `tag 3`, the last one may hold few names.
    repeated = [name for name in worded if any(texts[name].names & texts[other].names for other in repeated)]

    def shown(names: Sequence[str]) -> str:
        return shortened([f"{name!r} ({texts[name].example})" for name in names], 9)

    if any(column.is_label and column.example for column in columns.values()):
        odd = [name for name, column in texts.items() if column.has_words or not column.counts_rows]
        if not odd:
            return None, list(texts)
        either = ", or name the one that lists the labels" if worded else ""
        raise LabelwiseError(
            f"{records.file}: other columns hold 1 and 0 as those of labels do, but not {shown(odd)}; leave such "
            f"columns out{either}",
            options={"ignore_columns": ",".join(texts), **({"label_column": worded[0]} if worded else {})},
            either=True,
        )
    candidates = repeated or worded
    # Of a caption and a license, the license repeats: one name in a cell is no proof beside other texts.
    if not candidates or (len(repeated) == 1 and (texts[repeated[0]].has_several or len(worded) == 1)):
        return next(iter(repeated), None), []
    candidates = worded
    raise LabelwiseError(
        f"{records.file}: no column is called 'labels', and it is not clear which one lists them: {shown(candidates)}; "
        f"name it{', or join them in one column' if len(candidates) > 1 else ''}",
        options={"label_column": candidates[0]},
    )
