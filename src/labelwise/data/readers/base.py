"""What a reader is, and what several of them need."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BeforeValidator

from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.data.table import LabelTable

AnyOptions = TypeVar("AnyOptions", bound=Config)

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
    | {".avif", ".heic", ".heif", ".hif", ".ppm", ".jp2"}
)

Names = Annotated[tuple[str, ...], BeforeValidator(lambda v: tuple(v.split(",")) if isinstance(v, str) else v)]
"""An option that is a list of names: `["a", "b"]` in Python, `a,b` inside the data argument."""

_FILE_CHECKS = {True: "error", False: "no", "true": "error", "false": "no"}


class ReaderOptions(Config):
    """The options every format has."""

    check_files: Annotated[
        Literal["error", "drop", "no"], BeforeValidator(lambda v: _FILE_CHECKS.get(v, v) if v.__hash__ else v)
    ] = "error"  # images that are not on disk: an error, left out, or not looked for


def parse_options(kind: type[AnyOptions], values: Mapping[str, Any], where: str) -> AnyOptions:
    """Typed options from what the user gave; a misspelt name gets the nearest one proposed."""
    for name in values:
        if name not in kind.model_fields:
            raise unknown_name(f"option of {where}", name, kind.model_fields)
    return kind.parse(values, where)


@dataclass(frozen=True)
class Format:
    """A format: its name in `name:path`, its options, and how its files look."""

    name: str
    options: type[ReaderOptions]
    read: Callable[[Path, Any, Sequence[str] | None], LabelTable]  # path, options, wanted labels -> table
    recognise: Callable[[Path], bool]
    looks_like: str  # for the error about a folder that is none of them
    missing_image_fix: str = "Fetch it, or leave such images out with check_files=drop."


def check_files(table: LabelTable, mode: Literal["error", "drop", "no"], fix: str) -> LabelTable:
    """Look for every image on disk, and do with the missing ones as `mode` says."""
    if mode == "no":
        return table
    there = np.fromiter((os.path.isfile(image) for image in table.images), bool, len(table))
    if there.all():
        return table
    if mode == "drop" and there.any():
        return table.select(there)
    row = int(np.argmin(there))
    gone = int(np.count_nonzero(~there))
    more = f" (nor do {gone - 1} more of {len(table)})" if gone > 1 else ""
    raise LabelwiseError(f"{table.where(row)}: image {table.images[row]!r} does not exist{more}. {fix}")


def is_image(name: str) -> bool:
    """By suffix, hidden files excluded.

    >>> is_image("a.JPG"), is_image("notes.txt"), is_image("._a.jpg")
    (True, False, False)
    """
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def walk(folder: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Each folder in and below `folder` and the names of its files, sorted. Links are followed, hidden folders not."""
    visited = set[str]()
    for parent, folders, names in os.walk(folder, followlinks=True):
        place = os.path.realpath(parent)
        if place in visited:  # a link back to a folder above would lead round and round
            folders.clear()
            continue
        visited.add(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield parent, sorted(names)


def unique_names(names: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
    """Names that several ids share get the id behind them (ImageNet has two cranes).

    >>> unique_names(["crane", "tench", "crane"], ["n02012849", "n01440764", "n03126707"])
    ('crane (n02012849)', 'tench', 'crane (n03126707)')
    """
    count = Counter(names)
    return tuple(f"{name} ({id})" if count[name] > 1 else name for name, id in zip(names, ids, strict=True))


def read_lines(path: Path) -> list[str]:
    """The non-empty lines of a text file, stripped."""
    if not path.is_file():
        raise LabelwiseError(f"{path} is missing")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise LabelwiseError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    return [line.strip() for line in text.splitlines() if line.strip()]
