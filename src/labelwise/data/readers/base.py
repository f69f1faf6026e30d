"""What a reader is, how it is registered, and what several of them need.

A format is one file: an options class, a function that reads, and `register_format` above it. `voc.py` is a good
example. A reader in your own package works the same way, see `register_format`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BeforeValidator

from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError, one_line, unknown_name
from labelwise.core.plugins import import_plugins, same_origin
from labelwise.data.readers.finding import folder_of_missing
from labelwise.data.table import LabelTable

AnyOptions = TypeVar("AnyOptions", bound=Config)
Read = Callable[[Path, Any, Sequence[str] | None], LabelTable]  # path, options, wanted labels -> table
AnyRead = TypeVar("AnyRead", bound=Read)

Names = Annotated[tuple[str, ...], BeforeValidator(lambda v: tuple(v.split(",")) if isinstance(v, str) else v)]
"""An option that is a list of names: `["a", "b"]` in Python, `a,b` inside the data argument."""

_FILE_CHECKS = {True: "error", False: "no", "true": "error", "false": "no"}


class ReaderOptions(Config):
    """The options that every format has.

    Args:
        check_files: Images that are not on disk are an error, are dropped, or are not looked for ("no").
        merge_variants: Join labels whose names differ only in case, spacing, hyphens or the coding of accents
            (`Person`, `person`) under the most frequent name.
    """

    check_files: Annotated[
        Literal["error", "drop", "no"], BeforeValidator(lambda v: _FILE_CHECKS.get(v, v) if v.__hash__ else v)
    ] = "error"
    merge_variants: bool = False


def parse_options(kind: type[AnyOptions], values: Mapping[str, Any], where: str) -> AnyOptions:
    """Typed options from what the user gave; a misspelt name gets the nearest one proposed."""
    for name in values:
        if name not in kind.model_fields:
            raise unknown_name("option", name, kind.model_fields, where)
    return kind.parse({key: os.fspath(v) if isinstance(v, os.PathLike) else v for key, v in values.items()}, where)


@dataclass(frozen=True)
class Format:
    """A registered format; the fields are the arguments of `register_format`."""

    name: str
    read: Read
    options: type[ReaderOptions]
    looks_like: str
    recognise: Callable[[Path], bool]
    aliases: tuple[str, ...]
    priority: int
    missing_image_fix: str


_FORMATS: dict[str, Format] = {}


def register_format(
    name: str,
    *,
    looks_like: str,
    options: type[ReaderOptions] = ReaderOptions,
    recognise: Callable[[Path], bool] = lambda path: False,
    aliases: Sequence[str] = (),
    priority: int = 0,
    missing_image_fix: str = "Fetch it",
) -> Callable[[AnyRead], AnyRead]:
    """Register the function below as the reader of a format, so that `open_data("name:path?option=value")` finds it.

    The function gets the path, the options, and the label names that the caller wants (or None); it returns a
    `LabelTable`. It may ignore the names: `open_data` selects and orders the columns. A package that registers formats
    names its module in the entry point group `labelwise.formats`; then `labelwise train --data name:path` finds it,
    too.

    Args:
        name: Lower case; the part before the colon.
        looks_like: What the files look like, for the message about a path that no format recognises.
        options: The options of the format. Their class docstring is their documentation.
        recognise: Whether a path without a format name is of this format. Default: never.
        aliases: Other names.
        priority: Formats with a higher one are asked first whether they recognise a path.
        missing_image_fix: What to do about an image that does not exist, if it is not to be left out.

    >>> @register_format("names", looks_like="a text file of lines like: cat.jpg cat")
    ... def read_names(path, options, labels):
    ...     rows = [line.split() for line in read_lines(path)]
    ...     return LabelTable.from_lists([str(path.parent / image) for image, _ in rows], [names for _, *names in rows])
    >>> unregister_format("names")
    """

    def register(read: AnyRead) -> AnyRead:
        new = Format(name, read, options, looks_like, recognise, tuple(aliases), priority, missing_image_fix)
        for taken in (name, *aliases):
            if taken in _FORMATS and not same_origin(_FORMATS[taken].read, read):
                raise LabelwiseError(f"there is a data format {taken!r} already; choose another name")
        _FORMATS.update(dict.fromkeys((name, *aliases), new))
        return read

    return register


def unregister_format(name: str) -> None:
    """Forget a format and its aliases.

    Args:
        name: As in `register_format`.

    >>> unregister_format("mine")  # doctest: +SKIP
    """
    for alias in (name, *find_format(name).aliases):
        _FORMATS.pop(alias, None)


def find_format(name: str, others: Sequence[str] = ()) -> Format:
    """A format by its name or alias; case and underscores do not matter. An error also lists `others`."""
    plain = name.lower().replace("_", "-")
    if plain not in _FORMATS:
        import_plugins("labelwise.formats")
    if plain not in _FORMATS:
        raise unknown_name("data format", name, [*(format.name for format in list_formats()), *others])
    return _FORMATS[plain]


def list_formats() -> list[Format]:
    """All formats, in the order in which they are asked whether they recognise a path.

    >>> "coco" in [format.name for format in list_formats()]
    True
    """
    import_plugins("labelwise.formats")
    return sorted(dict.fromkeys(_FORMATS.values()), key=lambda format: -format.priority)


def check_files(table: LabelTable, options: ReaderOptions, fix: str) -> LabelTable:
    """Look for every image on disk, and do with the missing ones as the options say."""
    mode = options.check_files
    if mode == "no":
        return table
    there = np.fromiter((os.path.isfile(image) for image in table.images), bool, len(table))
    if there.all():
        return table
    if mode == "drop" and there.any():
        return table.select(there)
    row = int(np.argmin(there))
    gone = int(np.count_nonzero(~there))
    more = f" (nor {'does' if gone == 2 else 'do'} {gone - 1} more of {len(table)})" if gone > 1 else ""
    missing = [table.images[number] for number in np.flatnonzero(~there).tolist()]
    folder = folder_of_missing(missing, table.source)
    where = next((name for name in ("root", "images_folder") if name in type(options).model_fields), None)
    certain = folder is not None and where == "root" and 2 * gone > len(table)
    if where == "root" and 2 * gone <= len(table):  # most are where the table says
        fix, where = "Correct the path", None
    if folder is not None:
        fix = f"Images of that name lie in {folder}" + ("; say so" if certain else f". {fix}")
    raise LabelwiseError(
        f"{table.where(row)}: image {table.images[row]!r} does not exist{more}. {fix}, or leave such images out",
        options=({where: folder if certain else ...} if where else {}) | {"check_files": "drop"},
        either=True,
    )


def unique_names(names: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
    """Names that several ids share get the id behind them (ImageNet has two cranes).

    >>> unique_names(["crane", "tench", "crane"], ["n02012849", "n01440764", "n03126707"])
    ('crane (n02012849)', 'tench', 'crane (n03126707)')
    """
    count = Counter(names)
    return tuple(f"{name} ({id})" if count[name] > 1 else name for name, id in zip(names, ids, strict=True))


def choose_year(data: str, years: Sequence[str], given: str | None) -> str:
    """The year to read of a dataset that may hold several; "" if it holds no more than one."""
    if given is None and len(years) > 1:
        raise LabelwiseError(
            f"{data.partition(':')[2]} holds several years ({', '.join(years)}); choose one: {data}?year={years[0]}"
        )
    if given is not None and given not in years:
        raise unknown_name("year", given, years, data)
    return given or ""


def read_json(path: Path) -> Any:
    return parse_json(path.read_bytes(), str(path))


def parse_json(text: str | bytes, where: str) -> Any:
    """The content of a JSON text, whatever it is: too deep, numbers of thousands of digits, not UTF-8."""
    try:
        return json.loads(text)
    except RecursionError:
        reason = "nested too deeply"
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except ValueError as error:  # of the encoding, or a number of more digits than Python converts
        reason = one_line(error).partition(";")[0]
    raise LabelwiseError(f"{where}: not JSON ({reason})")


def read_lines(path: Path) -> list[str]:
    """The non-empty lines of a text file, stripped. `open_data` tells if it is missing."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise LabelwiseError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    return [line.strip() for line in text.splitlines() if line.strip()]
