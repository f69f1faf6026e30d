"""Tar shards in the webdataset convention: `0001.jpg` and `0001.json` (or .cls, .txt) in a shard belong together.

Shards are read with the standard library and fsspec, so they may be on a disk or behind http(s), s3, gs, ...; unlike in
the webdataset package, nothing in a shard's address or content is ever run or unpickled.
"""

from __future__ import annotations

import gzip
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from itertools import groupby, product
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

from labelwise.core.errors import LabelwiseError
from labelwise.data.images import is_image, require_regular
from labelwise.data.readers.manifest import LABEL_COLUMNS, UNKNOWN_COLUMNS, find_column
from labelwise.data.table import ABSENT, PRESENT, UNKNOWN

GZIP = b"\x1f\x8b"  # how its files begin
ABSENT_COLUMNS = ("absent", "absent_labels", "negative", "negatives")
_CHUNK = 1 << 20
_MEMBER = re.compile(r"((?:.*/)?[^/.]+)\.?([^/]*)", re.DOTALL)  # key and suffix of a file that is not hidden

Labels = list[str | int]  # names, or numbers from 0
Content = TypeVar("Content")


class SampleLabels(NamedTuple):
    """What a sample says of its labels; it says nothing of the others."""

    present: Labels
    absent: Labels
    unknown: Labels


class Sample(NamedTuple, Generic[Content]):
    """One sample of a shard: the contents of its files, or where they are."""

    key: str
    image: Content
    labels: Content | None
    suffix: str  # of the labels: json, cls or txt; "" if there are none


def expand_braces(pattern: str) -> list[str]:
    """Number ranges and alternatives, as in a shell.

    >>> expand_braces("train-{08..10}.tar"), expand_braces("{a,b}/{0..1}.tar")
    (['train-08.tar', 'train-09.tar', 'train-10.tar'], ['a/0.tar', 'a/1.tar', 'b/0.tar', 'b/1.tar'])
    """
    parts = re.split(r"\{([^{}]*)\}", pattern)  # text, inside of braces, text, ...
    choices = [[part] if number % 2 == 0 else _choices(part) for number, part in enumerate(parts)]
    return ["".join(choice) for choice in product(*choices)]


def _choices(inside: str) -> list[str]:
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if not numbers:
        return inside.split(",")
    return [f"{n:0{len(numbers[1])}d}" for n in range(int(numbers[1]), int(numbers[2]) + 1)]


class _StrictHeader(tarfile.TarInfo):
    """Refuses damaged headers: tarfile takes them for the end of the archive and silently ignores the rest."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the mark that every complete archive ends with
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"it is damaged or cut short: {error}") from None


@contextmanager
def open_shard(shard: str, mode: Literal["r|*", "r:"] = "r|*") -> Iterator[tarfile.TarFile]:
    """Open a shard to read all its files in order, or with `r:` only where they are; damage raises, at the latest at
    the end."""
    import fsspec  # comes with torch

    require_regular(shard)
    try:
        with (
            fsspec.open(shard, "rb") as file,
            BufferedReader(file) as buffered,
            # tarfile could unzip, too, but does not check the checksum.
            gzip.open(buffered) if buffered.peek(2)[:2] == GZIP else buffered as stream,
            tarfile.open(fileobj=stream, mode=mode, tarinfo=_StrictHeader) as archive,
        ):
            yield archive
            # Read to the very end: gzip's checksum is there, and zeros in a damaged file look like an end.
            while rest := archive.fileobj.read(_CHUNK):
                if rest.strip(b"\0"):
                    raise tarfile.ReadError("it is damaged: more follows after its end mark")
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise LabelwiseError(f"the shard {shard} is not a readable tar file ({error})") from None


def grouped(
    shard: str, archive: tarfile.TarFile, read: Callable[[tarfile.TarInfo], Content]
) -> Iterator[Sample[Content]]:
    """Files that follow each other and have the same name up to the first dot are one sample. `read` is called with
    each of them as it comes: a stream cannot go back."""
    named = ((_MEMBER.fullmatch(member.name), member) for member in archive if member.isfile())
    files = ((match[1], match[2].lower(), read(member)) for match, member in named if match)  # key, suffix, content
    for key, group in groupby(files, key=lambda file: file[0]):
        contents = {suffix: content for _, suffix, content in group}
        image = next((suffix for suffix in contents if is_image(f"x.{suffix}")), None)
        if image is None:
            raise LabelwiseError(f"{shard}: sample {key!r} has no image, only {', '.join('.' + s for s in contents)}")
        suffix = next((suffix for suffix in ("json", "cls", "txt") if suffix in contents), "")
        yield Sample(key, contents[image], contents.get(suffix), suffix)


# ---- labels


def parse_labels(content: bytes, suffix: str, where: str) -> SampleLabels:
    """The labels in a file of a sample.

    JSON is a list, an object with `labels` (or `tags`, `label`, ...) and perhaps `absent` and `unknown`, or an object
    whose `labels` map names to 1, 0 and -1. Other files hold names or numbers, one per line or separated by | ; ,

    >>> parse_labels(b'{"labels": ["cat"], "unknown": ["dog"]}', "json", "a.json")
    SampleLabels(present=['cat'], absent=[], unknown=['dog'])
    >>> parse_labels(b'{"labels": {"cat": 1, "cow": 0, "dog": -1}}', "json", "a.json")
    SampleLabels(present=['cat'], absent=['cow'], unknown=['dog'])
    """
    if suffix != "json":
        parts = (part.strip() for part in re.split(r"[\n|;,]", content.decode("utf-8", "replace")))
        return SampleLabels([int(part) if part.isdecimal() else part for part in parts if part], [], [])
    try:
        value: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise LabelwiseError(f"{where} is not JSON ({error})") from None
    return labels_of(value if isinstance(value, dict) else {"labels": value}, where)


def labels_of(row: Mapping[str, Any], where: str, column: str | None = None) -> SampleLabels:
    """The labels in a JSON object or in a row of a table; `column`: if they have an unusual name."""
    name = column or find_column(row, LABEL_COLUMNS)
    if name is None or name not in row:
        raise LabelwiseError(f"{where} has no 'labels', only {', '.join(row)}")
    labels = row[name]
    if isinstance(labels, dict):
        for value in labels.values():
            if value not in (PRESENT, ABSENT, UNKNOWN) or isinstance(value, bool):
                raise LabelwiseError(f"{where}: a label is 1 (present), 0 (absent) or -1 (unknown), not {value!r}")
        return SampleLabels(*([n for n, v in labels.items() if v == value] for value in (PRESENT, ABSENT, UNKNOWN)))
    others = (row.get(find_column(row, columns) or "") for columns in (ABSENT_COLUMNS, UNKNOWN_COLUMNS))
    return SampleLabels(as_list(labels, where), *(as_list(other, where) for other in others))


def as_list(value: Any, where: str = "") -> Labels:
    """One label or several; None is no label.

    >>> as_list("cat"), as_list([0, 2]), as_list(None)
    (['cat'], [0, 2], [])
    """
    if value is None:
        return []
    labels = list(value) if isinstance(value, list | tuple) else [value]
    for label in labels:
        if not isinstance(label, str | int) or isinstance(label, bool):
            raise LabelwiseError(f"{where}: labels are names, or numbers from 0, not {label!r}")
    return labels
