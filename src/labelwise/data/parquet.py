"""Parquet files that contain images or their paths, on a disk or at any address that fsspec knows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from labelwise.core.errors import LabelwiseError, missing_extra, unknown_name
from labelwise.data.images import require_regular
from labelwise.data.readers.manifest import IMAGE_COLUMNS

BYTES_COLUMNS = ("jpg", "jpeg", "png", "bytes", "image_bytes", "content", "data")
KEY_COLUMNS = ("key", "__key__", "id", "url")
_ROWS_AT_ONCE = 100  # a row group may hold a million images


@dataclass(frozen=True)
class ParquetColumns:
    """The columns of a Parquet file that are read."""

    image_column: str
    key_column: str | None

    @classmethod
    def found(cls, file: str, schema: Any, column: str | None) -> Self:
        """The image column as given, or by its name; the column that names an image, if there is one."""
        column = image_column(file, schema, column)
        texts = (name for name in (*IMAGE_COLUMNS, *KEY_COLUMNS) if name in schema.names and name != column)
        return cls(column, next((name for name in texts if is_text(schema.field(name).type)), None))

    @property
    def wanted(self) -> list[str]:
        return [self.image_column] if self.key_column is None else [self.image_column, self.key_column]

    def image(self, row: dict[str, Any]) -> tuple[bytes, str | None, str | None]:
        """An image's content, or its path, and its name; the content is empty in a cell without an image."""
        cell = row[self.image_column]
        name = row.get(self.key_column or "")
        if isinstance(cell, str):
            return b"", cell, name or cell
        data, path = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
        return data or b"", None if data else path, name or path


def row_ranges(opened: Any, size: int) -> Iterator[tuple[int, int, int, int]]:
    """All rows in ranges of up to `size`: row group, first row and end in it, number of the first row in the file."""
    first = 0
    for group in range(opened.num_row_groups):
        rows = opened.metadata.row_group(group).num_rows
        for start in range(0, rows, size):
            yield group, start, min(start + size, rows), first + start
        first += rows


def read_rows(
    file: str, row_group: int, start: int, stop: int, columns: list[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a row group from `start` up to `stop`, each with its number in the group."""
    with open_parquet(file) as opened, readable(file):
        place = 0
        for piece in opened.iter_batches(_ROWS_AT_ONCE, row_groups=[row_group], columns=columns):
            first, last = (min(max(row - place, 0), len(piece)) for row in (start, stop))
            yield from enumerate(piece.slice(first, last - first).to_pylist(), place + first)
            place += len(piece)
            if place >= stop:
                break


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


def image_column(file: str, schema: Any, wanted: str | None) -> str:
    from pyarrow import types

    if wanted is not None and wanted not in schema.names:
        raise unknown_name("column", wanted, schema.names, file)
    usual = next((name for name in (*BYTES_COLUMNS, *IMAGE_COLUMNS) if name in schema.names), None)
    column = wanted or usual
    if column is None:
        raise LabelwiseError(
            f"{file!r} has no image column among {', '.join(schema.names)}; name it", options={"column": ...}
        )
    kind = schema.field(column).type
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:  # Hugging Face's image feature
        return column
    if not (is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind)):
        raise LabelwiseError(
            f"{file!r}: the column {column!r} holds {kind}, neither paths nor images; name another one",
            options={"column": ...},
        )
    return column


def is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def beside(file: str, path: str) -> str:
    """Paths are relative to the folder of the file that lists them, as in every manifest."""
    return path if "://" in path or os.path.isabs(path) else os.path.join(os.path.dirname(file), path)


def holds_images(file: str) -> bool:
    """Whether a Parquet file contains images themselves, and not their paths."""
    with suppress(LabelwiseError), open_parquet(file) as opened:
        schema = opened.schema_arrow
        return not is_text(schema.field(image_column(file, schema, None)).type)
    return False
