"""Parts of a job: image files, a tar shard, or rows of a Parquet file, and how they are read. Small enough to be sent
to another machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from labelwise.data.decode import read_ahead
from labelwise.data.images import MAX_FILE_BYTES, is_image, too_large
from labelwise.data.locations import RawImage, read_file
from labelwise.data.parquet import ParquetColumns, beside, is_text, open_parquet, read_rows, readable, row_ranges
from labelwise.data.streams import open_shard

_READERS = 16  # concurrent downloads


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
        return read_ahead(read_file, self.names, threads=_READERS, ahead=2 * _READERS)


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
        columns = ParquetColumns(self.column, self.name_column)
        for row, cells in read_rows(self.file, self.row_group, self.start, self.stop, columns.wanted):
            data, _, name = columns.image(cells)
            place = f"{self.file}#{self.first + row - self.start}"
            yield RawImage(name or place, data, None if data else "the cell is empty")


def parquet_parts(file: str, part_size: int, column: str | None) -> Iterator[RowsPart | str]:
    """The parts of a file that contains images; the paths in a file that contains paths."""
    with open_parquet(file) as opened:
        columns = ParquetColumns.found(file, opened.schema_arrow, column)
        if is_text(opened.schema_arrow.field(columns.image_column).type):
            for group in range(opened.num_row_groups):
                with readable(file):
                    cells = opened.read_row_group(group, [columns.image_column])[columns.image_column].to_pylist()
                yield from (beside(file, cell or "") for cell in cells)
            return
        for group, start, stop, first in row_ranges(opened, part_size):
            yield RowsPart(file, group, start, stop, first, columns.image_column, columns.key_column)
