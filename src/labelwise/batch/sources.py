"""What a job is to work on, cut into parts: the same sources always give the same parts in the same order."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal

from labelwise.batch.job import ABOUT
from labelwise.batch.parquet import parquet_parts
from labelwise.batch.parts import FilesPart, Part, ShardPart
from labelwise.data.readers.base import is_image
from labelwise.data.tar_shards import expand_braces
from labelwise.errors import LabelwiseError

_SHARDS = (".tar", ".tar.gz", ".tgz")
Kind = Literal["image", "shard", "parquet"]


def find_parts(sources: Iterable[str], *, part_size: int = 500, column: str | None = None) -> list[Part]:
    """Folders, files, patterns (`*.tar`, `{000..099}.tar`) and addresses (`s3://…`), in their order.

    Pictures that are files are cut into parts of `part_size`; a tar shard is one part; Parquet that holds pictures is
    cut within its row groups.
    """
    if part_size < 1:
        raise LabelwiseError(f"a part of {part_size} pictures is too small; give 1 or more")
    parts: list[Part] = []
    names: list[str] = []
    for entry in chain.from_iterable(_entries(source, part_size, column) for source in sources):
        if isinstance(entry, str):
            names.append(entry)
        if names and (len(names) == part_size or not isinstance(entry, str)):
            parts.append(FilesPart(tuple(names)))
            names = []
        if not isinstance(entry, str):
            parts.append(entry)
    if names:
        parts.append(FilesPart(tuple(names)))
    if not parts:
        raise LabelwiseError("there is nothing to predict: the sources hold no pictures")
    return parts


def _entries(source: str, part_size: int, column: str | None) -> Iterator[Part | str]:
    """Names of pictures, and parts of what holds many."""
    for pattern in [source] if os.path.exists(source) else expand_braces(source):
        for name in _remote(pattern) if "://" in pattern else _local(pattern):
            kind = _kind(name)
            if kind == "shard":
                yield ShardPart(name)
            elif kind == "parquet":
                yield from parquet_parts(name, part_size, column)
            else:  # a file that was named is taken for a picture, whatever it is called
                yield name


def _local(source: str) -> Iterable[str]:
    if os.path.isdir(source):
        from labelwise.pictures import find_images

        # What a job wrote into a folder among the pictures is no source of the next run.
        found = ((parent, names) for parent, _, names in os.walk(source) if ABOUT not in names)
        files = (os.path.join(parent, name) for parent, names in found for name in names)
        return _one_kind(source, files) or (str(image) for image in find_images(source))
    if os.path.exists(source):
        return [source]
    matches = sorted(glob.glob(source, recursive=True))
    if not matches:
        raise LabelwiseError(f"no such file or folder: {source!r}")
    return chain.from_iterable(map(_local, matches))


def _remote(address: str) -> list[str]:
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(address)
        if glob.has_magic(path):
            found = [name for name in sorted(system.glob(path)) if system.isfile(name)]
        elif system.isfile(path):
            found = [path]
        else:
            files = sorted(system.find(path))
            found = _one_kind(address, files) or [name for name in files if _kind(name) == "image"]
    except (ImportError, ValueError) as error:  # no such protocol, or its package is missing: fsspec says which
        raise LabelwiseError(f"cannot open {address!r}: {error}") from None
    except LabelwiseError:
        raise
    except Exception as error:  # each file system has its own exceptions
        raise LabelwiseError(f"cannot list {address!r} ({type(error).__name__}: {error})") from None
    if not found:
        raise LabelwiseError(f"{address!r} holds no pictures, shards or Parquet files, or does not exist")
    return [system.unstrip_protocol(name) for name in found]


def _one_kind(folder: str, files: Iterable[str]) -> list[str]:
    """The shards or Parquet files of a folder, sorted; none if it holds pictures."""
    by_kind: dict[Kind, list[str]] = {}
    for file in files:
        kind = _kind(file)
        if kind and not (kind == "image" and kind in by_kind):  # of pictures it matters only that there are some
            by_kind.setdefault(kind, []).append(file)
    if len(by_kind) > 1:
        raise LabelwiseError(
            f"the folder {folder!r} holds more than one kind of source ({', '.join(sorted(by_kind))}); name the files "
            f"you mean, for example '{folder.rstrip('/')}/*.tar'"
        )
    return sorted(by_kind.get("shard", by_kind.get("parquet", [])))


def _kind(name: str) -> Kind | None:
    """
    >>> _kind("a/0001.tar.gz"), _kind("a.parquet"), _kind("a.JPG"), _kind("notes.txt")
    ('shard', 'parquet', 'image', None)
    """
    base = os.path.basename(name)
    if base.startswith("."):
        return None
    if base.lower().endswith(_SHARDS):
        return "shard"
    if base.lower().endswith(".parquet"):
        return "parquet"
    return "image" if is_image(base) else None
