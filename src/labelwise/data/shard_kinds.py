"""The kinds of shards: a tar file, rows of a Parquet file, lines of a list of paths, rows of a Hugging Face dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from labelwise.core.errors import LabelwiseError, missing_extra, one_line
from labelwise.data.images import MAX_FILE_BYTES
from labelwise.data.locations import read_file
from labelwise.data.parquet import ParquetColumns, beside, is_text, open_parquet, read_rows, row_ranges
from labelwise.data.readers.manifest import IMAGE_COLUMNS, LABEL_COLUMNS, UNKNOWN_COLUMNS, find_column
from labelwise.data.shards import SampleIndex, Shard
from labelwise.data.streams import ABSENT_COLUMNS, GZIP, Sample, grouped, open_shard
from labelwise.data.table import canonical_split

ROWS_PER_SHARD = 1000  # of Parquet files and saved datasets
LINES_PER_SHARD = 10_000

LabelColumns = tuple[tuple[str, str], ...]  # labels, absent or unknown, and the column that lists them


@dataclass(frozen=True)
class TarShard(Shard):
    """A tar file."""

    @property
    def at_random(self) -> bool:
        return "://" not in self.file and self.file.endswith(".tar")

    def in_place(self) -> SampleIndex | None:
        if "://" in self.file or self._is_zipped:
            return None
        with open_shard(self.file, "r:") as archive:
            return SampleIndex.of(grouped(self.file, archive, lambda member: (member.offset_data, member.size)))

    def samples(self) -> Iterator[Sample[bytes]]:
        with open_shard(self.file) as archive:

            def content(member: Any) -> bytes:
                file = archive.extractfile(member)
                return file.read() if file and member.size <= MAX_FILE_BYTES else b""

            yield from grouped(self.file, archive, content)

    @property
    def _is_zipped(self) -> bool:
        with open(self.file, "rb") as file:
            return file.read(2) == GZIP


# ---- Parquet


@dataclass(frozen=True, kw_only=True)
class RowsShard(Shard):
    """Rows of a Parquet file that contains images or their paths."""

    row_group: int
    start: int  # in the row group
    first: int  # the number of the row `start` in the file
    columns: ParquetColumns
    label_columns: LabelColumns
    holds_paths: bool

    @property
    def identity(self) -> str:
        return f"{self.file} {self.row_group} {self.start} {self.count} {self.columns} {self.label_columns}"

    @property
    def are_paths(self) -> bool:
        return self.holds_paths

    def samples(self) -> Iterator[Sample[bytes]]:
        wanted = list(dict.fromkeys([*self.columns.wanted, *(column for _, column in self.label_columns)]))
        for row, cells in read_rows(self.file, self.row_group, self.start, self.start + self.count, wanted):
            data, path, name = self.columns.image(cells)
            if path and not data:
                data = path.encode() if self.holds_paths else read_file(beside(self.file, path)).data
            key = name or str(self.first + row - self.start)
            yield Sample(key, data, *packed_labels(cells, self.label_columns))


def packed_labels(row: Mapping[str, Any], columns: LabelColumns) -> tuple[bytes | None, str]:
    """The labels in a row as a sample's JSON file, and its suffix; names in one text are separated by |.

    >>> packed_labels({"tags": "cat|dog", "width": 64}, (("labels", "tags"),))
    (b'{"labels": ["cat", "dog"]}', 'json')
    """
    if not columns:
        return None, ""
    cells = {kind: row[column] for kind, column in columns}
    values = {kind: list(filter(None, c.split("|"))) if isinstance(c, str) else c for kind, c in cells.items()}
    return json.dumps(values, ensure_ascii=False).encode(), "json"


def parquet_shards(file: str, split: str, image_column: str | None, label_column: str | None) -> list[RowsShard]:
    """The rows of a file in shards. Its end says how many there are."""
    with open_parquet(file) as opened:
        schema = opened.schema_arrow
        columns = ParquetColumns.found(file, schema, image_column)
        labels = label_columns(schema.names, label_column, file)
        paths = is_text(schema.field(columns.image_column).type)
        return [
            RowsShard(
                file,
                stop - start,
                split,
                row_group=group,
                start=start,
                first=first,
                columns=columns,
                label_columns=labels,
                holds_paths=paths,
            )
            for group, start, stop, first in row_ranges(opened, ROWS_PER_SHARD)
        ]


def label_columns(names: list[str], given: str | None, where: str) -> LabelColumns:
    """The columns that say which labels are present, absent and unknown, as far as there are any."""
    if given is not None and given not in names:
        raise LabelwiseError(
            f"{where} has no label column {given!r}: it has {', '.join(names)}; name one of them",
            options={"label_column": ...},
        )
    usual = {"labels": LABEL_COLUMNS, "absent": ABSENT_COLUMNS, "unknown": UNKNOWN_COLUMNS}
    found = {kind: find_column(names, columns) for kind, columns in usual.items()}
    found["labels"] = given or found["labels"]
    return tuple((kind, column) for kind, column in found.items() if column) if found["labels"] else ()


def declared_labels(shard: RowsShard) -> tuple[str, ...] | None:
    """The names of a `ClassLabel` that Hugging Face's `datasets` has written into a Parquet file."""
    with open_parquet(shard.file) as opened:
        about = json.loads((opened.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
        feature = about.get("info", {}).get("features", {}).get(dict(shard.label_columns).get("labels", ""), {})
    while isinstance(feature, dict) and isinstance(feature.get("feature"), dict):
        feature = feature["feature"]
    names = feature.get("names") if isinstance(feature, dict) else None
    return tuple(names) if names else None


# ---- lists


@dataclass(frozen=True, kw_only=True)
class LinesShard(Shard):
    """Lines of a text file that lists paths or addresses of images, one per line."""

    start: int  # the byte of the first line
    stop: int
    at_random = True

    @property
    def identity(self) -> str:
        return f"{self.file} {self.start} {self.stop}"

    def in_place(self) -> SampleIndex:
        with open(self.file, "rb") as file:
            file.seek(self.start)
            lines = file.read(self.stop - self.start).splitlines(keepends=True)
        samples, place = [], self.start
        for line in lines:
            if path := line.strip():
                first = place + line.index(path)
                samples.append(Sample(path.decode("utf-8", "surrogateescape"), (first, len(path)), None, ""))
            place += len(line)
        return SampleIndex.of(samples, are_paths=True)


def list_shards(file: str, split: str) -> list[LinesShard]:
    shards, start, place, count = [], 0, 0, 0
    with open(file, "rb") as lines:
        for line in lines:
            place += len(line)
            count += bool(line.strip())
            if count == LINES_PER_SHARD:
                shards.append(LinesShard(file, count, split, start=start, stop=place))
                start, count = place, 0
    return [*shards, LinesShard(file, count, split, start=start, stop=place)] if count else shards


# ---- Hugging Face datasets


@dataclass(frozen=True, kw_only=True)
class DatasetShard(Shard):
    """Rows of a Hugging Face dataset: of one that was saved to disk, or a shard of one that is streamed."""

    number: int
    of: int
    own_split: str  # as the dataset spells it
    image_column: str
    label_columns: LabelColumns

    @property
    def identity(self) -> str:
        return f"hf {self.file} {self.own_split} {self.number} {self.of} {self.image_column} {self.label_columns}"

    def samples(self) -> Iterator[Sample[bytes]]:
        rows = open_dataset(self.file)[self.own_split].shard(self.of, self.number)
        features = rows.features
        if type(features[self.image_column]).__name__ == "Image":
            # Bytes, not decoded images: our own decoder treats every source in the same way.
            rows = rows.cast_column(self.image_column, type(features[self.image_column])(decode=False))
        key_column = next((name for name in ("__key__", "id", "image_id", "file_name") if name in features), None)
        columns = ParquetColumns(self.image_column, key_column)
        for number, row in enumerate(rows):
            data, path, name = columns.image(row)
            key = name if name is not None else f"{self.number}-{number}"
            yield Sample(str(key), data or read_file(str(path)).data, *packed_labels(row, self.label_columns))


@cache
def open_dataset(name: str) -> Mapping[str, Any]:
    """The splits of a dataset on disk or, streamed, of any that `datasets` can load."""
    with _datasets(name) as datasets:
        if not _is_saved(name):
            streamed: Mapping[str, Any] = datasets.load_dataset(name, streaming=True)
            return streamed
        saved = datasets.load_from_disk(name)
        return saved if isinstance(saved, datasets.DatasetDict) else {"": saved}


def _is_saved(name: str) -> bool:
    """By `save_to_disk`."""
    return any((Path(name) / file).is_file() for file in ("dataset_dict.json", "state.json"))


@contextmanager
def _datasets(name: str) -> Iterator[Any]:
    """The package, which is an extra. The hub, the network and its builders raise classes of their own."""
    try:
        import datasets
    except ImportError:
        raise missing_extra("datasets", "streaming") from None
    try:
        yield datasets
    except Exception as error:
        raise LabelwiseError(f"cannot open hf:{name} ({one_line(error)})") from error


def dataset_files(name: str) -> dict[str, list[str]]:
    """The Parquet files of each split of a dataset that has no other files; else none."""
    if _is_saved(name):
        return {}
    with _datasets(name) as datasets:
        files = datasets.load_dataset_builder(name).config.data_files or {}
    found = {str(split): [str(file) for file in paths] for split, paths in files.items()}
    return found if all(file.endswith(".parquet") for paths in found.values() for file in paths) else {}


def dataset_shards(
    name: str, image_column: str | None, label_column: str | None
) -> tuple[list[Shard], tuple[str, ...] | None]:
    """The shards of a dataset that is saved to disk or streamed, and the label names that it declares."""
    shards: list[Shard] = []
    labels = None
    for split, rows in open_dataset(name).items():
        features = rows.features
        if features is None:
            raise LabelwiseError(f"hf:{name} does not say which columns it has")
        image = image_column or find_column(features, IMAGE_COLUMNS)
        if image is None or image not in features:
            raise LabelwiseError(
                f"hf:{name} has no image column: it has {', '.join(features)}; name it", options={"image_column": ...}
            )
        columns = label_columns(list(features), label_column, f"hf:{name}")
        length = len(rows) if hasattr(rows, "__len__") else None  # a stream does not know
        number = rows.num_shards if length is None else -(-length // ROWS_PER_SHARD)
        for part in range(number):
            count = -1 if length is None else length // number + (part < length % number)
            shards.append(
                DatasetShard(
                    name,
                    count,
                    canonical_split(split),
                    number=part,
                    of=number,
                    own_split=str(split),
                    image_column=image,
                    label_columns=columns,
                )
            )
        label = features[dict(columns)["labels"]] if columns else None  # a ClassLabel, or a list of them, has names
        labels = tuple(getattr(getattr(label, "feature", label), "names", None) or ()) or labels
    return shards, labels
