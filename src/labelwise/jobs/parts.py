"""Parts of a job: image files, a tar shard, or rows of a Parquet file, and how they are read. Small enough to be sent
to another machine."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from labelwise.core.environment import offline_by
from labelwise.core.errors import LabelwiseError, missing_extra, unknown_name
from labelwise.data.images import MAX_FILE_BYTES, fault_of_file, is_image, read_bytes, require_regular, too_large
from labelwise.data.readers.manifest import IMAGE_COLUMNS
from labelwise.data.streams import open_shard

_READERS = 16  # concurrent downloads
_ROWS_AT_ONCE = 100  # of a Parquet file
_TRIES = 4  # a network error must not fail the whole part
_BYTES_COLUMNS = ("jpg", "jpeg", "png", "bytes", "image_bytes", "content", "data")
_KEY_COLUMNS = ("key", "__key__", "id", "url")


class RawImage(NamedTuple):
    """An image's name and file content, or why there is none."""

    name: str
    data: bytes
    problem: str | None = None


class Part(Protocol):
    """Its `repr` is part of a job's fingerprint: after renaming a class or field here, old jobs cannot be resumed."""

    @property
    def count(self) -> int | None:
        """How many images; None if that is known only at the end."""

    @property
    def files(self) -> tuple[str, ...]:
        """What it is read from."""

    def images(self) -> Iterator[RawImage]: ...


@dataclass(frozen=True)
class FilesPart:
    """Image files, local or at any address that fsspec knows."""

    names: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def files(self) -> tuple[str, ...]:
        return self.names

    def images(self) -> Iterator[RawImage]:
        ahead: deque[Future[RawImage]] = deque()
        with ThreadPoolExecutor(_READERS, thread_name_prefix="read") as pool:
            for name in self.names:
                ahead.append(pool.submit(read_file, name))
                if len(ahead) == 2 * _READERS:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()


@dataclass(frozen=True)
class ShardPart:
    """Every image in a tar file; other members (labels, captions) are ignored."""

    shard: str

    @property
    def count(self) -> None:
        return None

    @property
    def files(self) -> tuple[str, ...]:
        return (self.shard,)

    def images(self) -> Iterator[RawImage]:
        with open_shard(self.shard) as archive:
            for member in archive:
                if member.isfile() and is_image(Path(member.name).name):
                    name = f"{self.shard}/{member.name}"
                    if member.size > MAX_FILE_BYTES:
                        yield RawImage(name, b"", too_large(member.size))
                        continue
                    file = archive.extractfile(member)
                    yield RawImage(name, file.read() if file else b"")


@dataclass(frozen=True)
class RowsPart:
    """Rows of a Parquet file that contains the images themselves."""

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

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,)

    def images(self) -> Iterator[RawImage]:
        columns = [self.column] if self.name_column is None else [self.column, self.name_column]
        with open_parquet(self.file) as file, readable(self.file):
            # A row group may hold a million images: read it piece by piece, up to the end of this part.
            place = 0
            for piece in file.iter_batches(_ROWS_AT_ONCE, row_groups=[self.row_group], columns=columns):
                start, stop = (min(max(row - place, 0), len(piece)) for row in (self.start, self.stop))
                for row, cells in enumerate(piece.slice(start, stop - start).to_pylist(), place + start):
                    yield self._image(cells, f"{self.file}#{self.first + row - self.start}")
                place += len(piece)
                if place >= self.stop:
                    break

    def _image(self, row: dict[str, Any], place: str) -> RawImage:
        cell = row[self.column]
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        name = row.get(self.name_column or "") or (cell.get("path") if isinstance(cell, dict) else None) or place
        return RawImage(str(name), data or b"", None if data else "the cell is empty")


def parquet_parts(file: str, part_size: int, column: str | None) -> Iterator[RowsPart | str]:
    """The parts of a file that contains images; the paths in a file that contains paths."""
    with open_parquet(file) as opened:
        schema = opened.schema_arrow
        column = _image_column(file, schema, column)
        if _is_text(schema.field(column).type):
            for group in range(opened.num_row_groups):
                with readable(file):
                    cells = opened.read_row_group(group, [column])[column].to_pylist()
                yield from (_beside(file, cell or "") for cell in cells)
            return
        texts = (name for name in (*IMAGE_COLUMNS, *_KEY_COLUMNS) if name in schema.names and name != column)
        name_column = next((name for name in texts if _is_text(schema.field(name).type)), None)
        first = 0
        for group in range(opened.num_row_groups):
            rows = opened.metadata.row_group(group).num_rows
            for start in range(0, rows, part_size):
                yield RowsPart(file, group, start, min(start + part_size, rows), first + start, column, name_column)
            first += rows


@contextmanager
def open_parquet(file: str) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile`, local or at any address that fsspec knows."""
    try:
        import fsspec
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise missing_extra("pyarrow", "parquet") from None
    require_regular(file)
    try:
        stream = fsspec.open(file, "rb").open()
    except FileNotFoundError:
        raise LabelwiseError(f"no such file: {file!r}") from None
    with stream:
        with readable(file):
            opened = ParquetFile(stream, pre_buffer=False, buffer_size=1 << 20)  # else it reads whole row groups
        yield opened


@contextmanager
def readable(file: str) -> Iterator[None]:
    """Errors of pyarrow about a damaged file become one line that names the file."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError) as error:
        reason = " ".join(str(error).split())[:200]
        raise LabelwiseError(f"{file!r} is not a readable Parquet file ({reason}); write or copy it again") from None


def _image_column(file: str, schema: Any, wanted: str | None) -> str:
    from pyarrow import types

    if wanted is not None and wanted not in schema.names:
        raise unknown_name("column", wanted, schema.names, file)
    usual = next((name for name in (*_BYTES_COLUMNS, *IMAGE_COLUMNS) if name in schema.names), None)
    column = wanted or usual
    if column is None:
        raise LabelwiseError(
            f"{file!r} has no image column among {', '.join(schema.names)}; name it", options={"column": ...}
        )
    kind = schema.field(column).type
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:  # Hugging Face's image feature
        return column
    if not (_is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind)):
        raise LabelwiseError(
            f"{file!r}: the column {column!r} holds {kind}, neither paths nor images; name another one",
            options={"column": ...},
        )
    return column


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _beside(file: str, path: str) -> str:
    """Paths are relative to the folder of the file that lists them, as in every manifest."""
    return path if "://" in path or os.path.isabs(path) else os.path.join(os.path.dirname(file), path)


def read_file(name: str) -> RawImage:
    """A missing file fails that image alone; a failing disk or network fails the whole part."""
    tries = _TRIES if "://" in name and offline_by() != "LABELWISE_OFFLINE" else 1
    for attempt in range(tries):
        try:
            return RawImage(name, _read(name))
        except Exception as error:  # each file system has its own exceptions
            if reason := fault_of_file(error):
                return RawImage(name, b"", reason)
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
