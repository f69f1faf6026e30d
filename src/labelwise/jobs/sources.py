"""Split the sources of a job into parts: the same sources always give the same parts in the same order."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice
from typing import cast

from labelwise.core.environment import offline_by
from labelwise.core.errors import LabelwiseError, did_you_mean
from labelwise.data.decode import FileKind, file_kind, find_images, walk
from labelwise.data.streams import expand_braces
from labelwise.jobs.job import ABOUT
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
        chain.from_iterable(map(_files, sources)),
        chain.from_iterable([name] if _is_image(name) else _files(name) for name in listed),
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


def _files(source: str) -> Iterator[str]:
    """The files of a source."""
    for pattern in [source] if os.path.exists(source) else expand_braces(source):
        yield from _remote(pattern) if "://" in pattern else _local(pattern)


def _local(source: str) -> Iterable[str]:
    if os.path.isdir(source):
        # The output of an earlier job among the images is not a source.
        folders = ((parent, names) for parent, names in walk(source) if ABOUT not in names)
        files = (os.path.join(parent, name) for parent, names in folders for name in names)
        return _one_kind(source, files) or (str(image) for image in find_images(source))
    if os.path.exists(source):
        return [source]
    matches = sorted(glob.glob(source, recursive=True))
    if not matches:
        raise LabelwiseError(f"no such file or folder: {source!r}{did_you_mean(source)}")
    return chain.from_iterable(_local(match) if os.path.isdir(match) else [match] for match in matches)


def _remote(address: str) -> list[str]:
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(address)
        if glob.has_magic(path):
            found = [name for name in sorted(system.glob(path)) if system.isfile(name)]
        elif system.isfile(path):
            found = [path]
        else:
            files = _visible(path, sorted(system.find(path)))
            found = _one_kind(address, files) or [name for name in files if file_kind(name) == "image"]
    except (ImportError, ValueError) as error:  # no such protocol, or its package is missing: fsspec says which
        raise LabelwiseError(f"cannot open {address!r}: {error}") from None
    except LabelwiseError:
        raise
    except Exception as error:  # each file system has its own exceptions
        raise LabelwiseError(f"cannot list {address!r} ({type(error).__name__}: {error})") from None
    if not found:  # file systems take an error of the network for a missing file
        unasked = ", or is not asked (LABELWISE_OFFLINE=1)" if offline_by() == "LABELWISE_OFFLINE" else ""
        raise LabelwiseError(f"{address!r} contains no images, shards or Parquet files, or does not exist{unasked}")
    return [system.unstrip_protocol(name) for name in found]


def _visible(folder: str, files: list[str]) -> list[str]:
    """Files that are neither in a hidden folder below `folder` nor written by a job."""
    jobs = {os.path.dirname(file) for file in files if os.path.basename(file) == ABOUT}
    below = len(folder.rstrip("/"))
    return [file for file in files if os.path.dirname(file) not in jobs and "/." not in os.path.dirname(file[below:])]


def _one_kind(folder: str, files: Iterable[str]) -> list[str]:
    """The shards or Parquet files of a folder, sorted; none if it contains images."""
    by_kind: dict[FileKind, list[str]] = {}
    for file in files:
        kind = file_kind(file)
        if kind and not (kind == "image" and kind in by_kind):  # of images, one is enough to know
            by_kind.setdefault(kind, []).append(file)
    if len(by_kind) > 1:
        raise LabelwiseError(
            f"the folder {folder!r} mixes several kinds of sources ({', '.join(sorted(by_kind))}); name the files, "
            f"for example '{folder.rstrip('/')}/*.tar'"
        )
    return sorted(by_kind.get("shard", by_kind.get("parquet", [])))
