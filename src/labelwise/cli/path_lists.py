"""Lists of paths from files and from other programs, read while they are still being written."""

from __future__ import annotations

import os
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import nullcontext
from typing import IO

_CHUNK = 1 << 16


def read_paths(source: str, *, null: bool = False) -> Iterator[str]:
    """The paths in file `source`, or from stdin if that is `-`: one per line, or with `null` each ended by a NUL byte
    as `find -print0` does. A path is given as soon as it has arrived."""
    with nullcontext(sys.stdin.buffer) if source == "-" else open(source, "rb") as file:
        for number, entry in enumerate(split_paths(file, b"\0" if null else b"\n")):
            if not null:
                entry = entry.removesuffix(b"\r")
            if number == 0:
                entry = entry.removeprefix(BOM_UTF8)  # some editors write it
            if entry:
                yield os.fsdecode(entry)  # names that are not UTF-8 find their files, too


def split_paths(file: IO[bytes], end: bytes) -> Iterator[bytes]:
    r"""
    >>> from io import BytesIO
    >>> list(split_paths(BytesIO(b"a b.jpg\0c\nd.jpg\0"), b"\0"))
    [b'a b.jpg', b'c\nd.jpg', b'']
    """
    read = getattr(file, "read1", file.read)  # what has arrived, instead of waiting until the chunk is full
    rest = b""
    while chunk := read(_CHUNK):
        *complete, rest = (rest + chunk).split(end)
        yield from complete
    yield rest
