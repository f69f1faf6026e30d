"""A part of a job: where its pictures are, and how they are read. Small enough to be sent to another machine."""

from __future__ import annotations

import tarfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from labelwise.data.readers.base import is_image
from labelwise.data.tar_shards import open_shard
from labelwise.errors import LabelwiseError

_READERS = 16  # files of a bucket that are on their way at once
_ROWS_AT_ONCE = 100  # of a Parquet file
_TRIES = 4  # a bucket's hiccup must not cost the part


class RawPicture(NamedTuple):
    """A picture's name and file content, or why there is none."""

    name: str
    data: bytes
    problem: str | None = None


class Part(Protocol):
    @property
    def count(self) -> int | None:
        """How many pictures; None if that is only known at its end."""

    def pictures(self) -> Iterator[RawPicture]: ...


@dataclass(frozen=True)
class FilesPart:
    """Pictures that are files: local ones, or behind any address that fsspec knows."""

    names: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.names)

    def pictures(self) -> Iterator[RawPicture]:
        ahead: deque[Future[RawPicture]] = deque()
        with ThreadPoolExecutor(_READERS, thread_name_prefix="read") as pool:
            for name in self.names:
                ahead.append(pool.submit(read_file, name))
                if len(ahead) == 2 * _READERS:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()


@dataclass(frozen=True)
class ShardPart:
    """Every image in a tar file; what else is in it (labels, captions) is passed over."""

    shard: str

    @property
    def count(self) -> None:
        return None

    def pictures(self) -> Iterator[RawPicture]:
        with open_shard(self.shard) as archive:
            for member in archive:
                if member.isfile() and is_image(Path(member.name).name):
                    yield RawPicture(f"{self.shard}/{member.name}", _content(archive, member))


@dataclass(frozen=True)
class RowsPart:
    """Rows of a Parquet file that holds the pictures themselves."""

    file: str
    row_group: int
    start: int  # in the row group
    stop: int
    first: int  # number of the row `start` in the file
    column: str
    name_column: str | None

    @property
    def count(self) -> int:
        return self.stop - self.start

    def pictures(self) -> Iterator[RawPicture]:
        from labelwise.batch.parquet import open_parquet, readable

        columns = [self.column] if self.name_column is None else [self.column, self.name_column]
        with open_parquet(self.file) as file, readable(self.file):
            # A row group may hold a million pictures: it is read piece by piece, up to this part's end.
            place = 0
            for piece in file.iter_batches(_ROWS_AT_ONCE, row_groups=[self.row_group], columns=columns):
                start, stop = (min(max(row - place, 0), len(piece)) for row in (self.start, self.stop))
                for row, cells in enumerate(piece.slice(start, stop - start).to_pylist(), place + start):
                    yield self._picture(cells, f"{self.file}#{self.first + row - self.start}")
                place += len(piece)
                if place >= self.stop:
                    break

    def _picture(self, row: dict[str, Any], place: str) -> RawPicture:
        cell = row[self.column]
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        name = row.get(self.name_column or "") or (cell.get("path") if isinstance(cell, dict) else None) or place
        return RawPicture(str(name), data or b"", None if data else "the cell is empty")


def read_file(name: str) -> RawPicture:
    """A file that is not there is that picture's problem; a disk or network that fails is the whole part's."""
    for attempt in range(_TRIES):
        try:
            return RawPicture(name, _read(name))
        except FileNotFoundError:
            return RawPicture(name, b"", "no such file")
        except (IsADirectoryError, PermissionError) as error:
            return RawPicture(name, b"", error.strerror or type(error).__name__)
        except Exception as error:  # each file system has its own exceptions
            if "://" not in name or attempt == _TRIES - 1:
                raise LabelwiseError(f"cannot read {name!r} ({type(error).__name__}: {error})") from None
            time.sleep(0.2 * 4**attempt)
    raise AssertionError("the last attempt returns or raises")


def _read(name: str) -> bytes:
    if "://" not in name:
        return Path(name).read_bytes()
    import fsspec

    system, path = fsspec.core.url_to_fs(name)
    content: bytes = system.cat_file(path)
    return content


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return file.read() if file else b""
