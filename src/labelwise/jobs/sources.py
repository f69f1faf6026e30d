"""Split the sources of a job into parts: the same sources always give the same parts in the same order."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice
from typing import cast

from labelwise.core.errors import LabelwiseError
from labelwise.data.decode import file_kind
from labelwise.data.locations import files_of
from labelwise.jobs.parts import FilesPart, Part, ShardPart, parquet_parts


def find_parts(
    sources: Iterable[str], *, listed: Iterable[str] = (), part_size: int = 500, column: str | None = None
) -> list[Part]:
    """Split sources into parts, in their order.

    Args:
        sources: Folders, files, patterns (`*.tar`, `{000..099}.tar`) and addresses (`s3://…`). A tar shard is one part;
            a Parquet file that contains images is split within its row groups.
        listed: More of the same, e.g. from a list file. A missing source is an error, but a missing image of this list
            becomes a row with an error.
        part_size: Images per part.
        column: The image column of Parquet files. Default: found by its name.
    """
    if part_size < 1:
        raise LabelwiseError(f"part_size={part_size} is too small; give 1 or more")
    found = chain(
        chain.from_iterable(map(files_of, sources)),
        chain.from_iterable([name] if _is_image(name) else files_of(name) for name in listed),
    )
    entries = chain.from_iterable(_entries(name, part_size, column) for name in found)
    parts: list[Part] = []
    for is_name, group in groupby(entries, key=lambda entry: isinstance(entry, str)):
        if is_name:
            names = cast(Iterator[str], group)
            while part := tuple(islice(names, part_size)):
                parts.append(FilesPart(part))
        else:
            parts += cast(Iterator[Part], group)
    if not parts:
        raise LabelwiseError("the sources contain no images")
    return parts


def _is_image(name: str) -> bool:
    """Whether a listed name means one image file, be it there or not."""
    if os.path.isdir(name) or file_kind(name) in ("shard", "parquet"):
        return False
    if "://" in name:
        return file_kind(name) == "image" and not glob.has_magic(name)
    return os.path.exists(name) or not (glob.has_magic(name) or "{" in name)


def _entries(name: str, part_size: int, column: str | None) -> Iterator[Part | str]:
    """The name of an image, or the parts of a container. Any other file was named on purpose: an image, too."""
    kind = file_kind(name)
    if kind == "shard":
        yield ShardPart(name)
    elif kind == "parquet":
        yield from parquet_parts(name, part_size, column)
    else:
        yield name
