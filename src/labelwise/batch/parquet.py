"""Parquet files as a source of pictures: paths in a column, or the pictures themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from labelwise.batch.parts import RowsPart
from labelwise.data.readers.manifest import IMAGE_COLUMNS
from labelwise.errors import LabelwiseError, missing_extra, unknown_name

_BYTES_COLUMNS = ("jpg", "jpeg", "png", "bytes", "image_bytes", "content", "data")
_KEY_COLUMNS = ("key", "__key__", "id", "url")


@contextmanager
def readable(file: str) -> Iterator[None]:
    """What pyarrow says about a damaged file, as one line that names it."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError) as error:
        reason = " ".join(str(error).split())[:200]
        raise LabelwiseError(f"{file!r} is not a readable Parquet file ({reason}); write or copy it again") from None


@contextmanager
def open_parquet(file: str) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile`, local or behind any address that fsspec knows."""
    try:
        import fsspec
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise missing_extra("pyarrow", "parquet") from None
    try:
        stream = fsspec.open(file, "rb").open()
    except FileNotFoundError:
        raise LabelwiseError(f"no such file: {file!r}") from None
    with stream:
        with readable(file):
            opened = ParquetFile(stream, pre_buffer=False, buffer_size=1 << 20)  # else a row group is read as a whole
        yield opened


def parquet_parts(file: str, part_size: int, column: str | None) -> Iterator[RowsPart | str]:
    """Parts of a file that holds pictures; of one that holds paths, the paths."""
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


def _image_column(file: str, schema: Any, wanted: str | None) -> str:
    from pyarrow import types

    if wanted is not None and wanted not in schema.names:
        raise unknown_name(f"column of {file}", wanted, schema.names)
    usual = next((name for name in (*_BYTES_COLUMNS, *IMAGE_COLUMNS) if name in schema.names), None)
    column = wanted or usual
    if column is None:
        raise LabelwiseError(f"{file!r} has no image column: it has {', '.join(schema.names)}; say --column NAME")
    kind = schema.field(column).type
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:  # how Hugging Face's datasets keep pictures
        return column
    if not (_is_text(kind) or types.is_binary(kind) or types.is_large_binary(kind)):
        raise LabelwiseError(
            f"{file!r}: the column {column!r} holds {kind}, neither paths nor pictures; say --column NAME"
        )
    return column


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _beside(file: str, path: str) -> str:
    """Paths are relative to the folder of the file they stand in, as in every manifest."""
    return path if "://" in path or os.path.isabs(path) else os.path.join(os.path.dirname(file), path)
