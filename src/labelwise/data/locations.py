"""Files wherever they are, on a disk or at any address that fsspec knows: listing and reading them."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeVar

from labelwise.core.environment import offline_by
from labelwise.core.errors import LabelwiseError, did_you_mean
from labelwise.data.decode import FileKind, file_kind, find_images, walk
from labelwise.data.images import fault_of_file, read_bytes
from labelwise.data.streams import expand_braces

JOB_FILE = "_job.json"  # in the output of a large job; readers of Parquet folders ignore names with an underscore
_TRIES = 4  # a network error must not fail everything
_Result = TypeVar("_Result")


class RawImage(NamedTuple):
    """An image's name and file content, or why there is none."""

    name: str
    data: bytes
    problem: str | None = None


def files_of(source: str) -> Iterator[str]:
    """The files of a source."""
    for pattern in [source] if os.path.exists(source) else expand_braces(source):
        yield from _remote(pattern) if "://" in pattern else _local(pattern)


def _local(source: str) -> Iterable[str]:
    if os.path.isdir(source):
        # The output of an earlier job among the images is not a source.
        folders = ((parent, names) for parent, names in walk(source) if JOB_FILE not in names)
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
    jobs = {os.path.dirname(file) for file in files if os.path.basename(file) == JOB_FILE}
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


# ---- reading


def read_file(name: str) -> RawImage:
    """A missing file fails that image alone; a failing disk or network fails the whole part."""
    try:
        return RawImage(name, retried(lambda: _read(name), name))
    except (OSError, ValueError) as error:
        return RawImage(name, b"", fault_of_file(error))


def retried(read: Callable[[], _Result], name: str) -> _Result:
    """What `read` gives of a file; at an address it tries again after an error of the network. A fault of this one file
    is raised as it is."""
    tries = _TRIES if "://" in name and offline_by() != "LABELWISE_OFFLINE" else 1
    for attempt in range(tries):
        try:
            return read()
        except LabelwiseError:
            raise
        except Exception as error:  # each file system has its own exceptions
            if fault_of_file(error):
                raise
            if attempt == tries - 1:
                raise LabelwiseError(f"cannot read {name!r} ({type(error).__name__}: {error})") from None
            time.sleep(0.2 * 4**attempt)
    raise AssertionError("the last attempt returns or raises")


def _read(name: str) -> bytes:
    if "://" not in name:
        return read_bytes(name)
    import fsspec

    system, path = fsspec.core.url_to_fs(name)
    content: bytes = system.cat_file(path)
    return content
