"""The data argument: a path, `format:path`, or `format:path?option=value`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import parse_qsl, quote, urlencode

from labelwise.core.errors import LabelwiseError, counted, shortened, tell
from labelwise.data.decode import file_kind
from labelwise.data.labels import labels_not_in, merged_variants, variant_note
from labelwise.data.parquet import holds_images
from labelwise.data.readers.base import Format, ReaderOptions, check_files, find_format, list_formats, parse_options
from labelwise.data.readers.manifest import ManifestOptions, read_frame
from labelwise.data.table import LabelTable

if TYPE_CHECKING:
    import pandas

    from labelwise.data.stream_table import StreamTable

# Files that people have and no format reads, and what to do with them.
_NOT_READ = {
    **dict.fromkeys((".zip", ".7z", ".rar", ".gz", ".tgz"), "unpack it, and name the folder or the table in it"),
    **dict.fromkeys((".xlsx", ".xls", ".ods", ".numbers"), "save the sheet as CSV (UTF-8)"),
    **dict.fromkeys((".yaml", ".yml"), "if it belongs to YOLO's boxes, export them as COCO"),
}
STREAMED_FORMATS = ("stream", "webdataset", "hf")


@dataclass(frozen=True)
class DataSource:
    """A data argument taken apart."""

    format: str | None  # None: to be recognised
    path: str
    options: dict[str, str] = field(default_factory=dict)


def parse_source(data: str | Path) -> DataSource:
    """Take a data argument apart; a path that exists is always just a path.

    >>> parse_source("voc:/data/VOCdevkit?year=2007&difficult=present")
    DataSource(format='voc', path='/data/VOCdevkit', options={'year': '2007', 'difficult': 'present'})
    >>> parse_source("photos.csv")
    DataSource(format=None, path='photos.csv', options={})
    """
    text = str(data)
    if os.path.exists(os.path.expanduser(text)):
        return DataSource(None, os.path.expanduser(text))
    format_name = None
    prefix = re.match(r"([A-Za-z][A-Za-z0-9_-]+):(?!//)", text)  # two letters at least: `C:\photos` is a path
    if prefix:
        format_name = prefix[1].lower()
        if format_name not in STREAMED_FORMATS:
            format_name = find_format(format_name, STREAMED_FORMATS).name
        text = text[prefix.end() :]
    options: dict[str, str] = {}
    if not os.path.exists(os.path.expanduser(text)) and "?" in text:
        text, _, query = text.rpartition("?")
        try:
            options = dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True, strict_parsing=True))
        except ValueError:
            raise LabelwiseError(f"cannot read the options '?{query}'; write them as ?name=value&name=value") from None
    return DataSource(format_name, os.path.expanduser(text), options)


def with_options(data: str | Path, options: Mapping[str, Any]) -> str:
    """The data argument with more options in it, for a recipe that reads the same table again.

    >>> with_options("csv:photos.csv?separator=|", {"image_column": "file name", "root": None})
    'csv:photos.csv?separator=|&image_column=file%20name'
    """
    given = {name: _as_text(value) for name, value in options.items() if value is not None}
    if not given:
        return str(data)
    source = parse_source(data)
    query = urlencode({**source.options, **given}, quote_via=quote, safe="|/,:;")
    return f"{source.format}:{source.path}?{query}" if source.format else f"{source.path}?{query}"


def _as_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_streamed(data: str | Path) -> bool:
    """Whether the argument names shards, which are read as they are needed, and not a table that is read at once.

    >>> is_streamed("hf:photos"), is_streamed("shards/train-{000..009}.tar"), is_streamed("photos.csv")
    (True, True, False)
    """
    source = parse_source(data)
    if source.format is not None:
        return source.format in STREAMED_FORMATS
    kind = file_kind(source.path)
    return "://" in source.path or kind == "shard" or (kind == "parquet" and not os.path.exists(source.path))


def open_images(data: str | Path, *, labels: Sequence[str] | None = None, **options: Any) -> LabelTable | StreamTable:
    """Read a dataset in any known format, as `open_data`, or open shards, whose samples are read as they are needed.

    Args:
        data: What `open_data` takes; tar shards (`train-{000000..000099}.tar`, `webdataset:folder`), Parquet files with
            images, an address (`s3://bucket/shards/*.tar`), a list of paths (`stream:paths.txt`), or `hf:name`.
        labels: Fixes the columns.
        options: The reader's own; of a stream, see `StreamOptions`.
    """
    source = parse_source(data)
    is_parquet = file_kind(source.path) == "parquet" and os.path.isfile(source.path)
    if not (is_streamed(data) or (source.format is None and is_parquet and holds_images(source.path))):
        return open_data(data, labels=labels, **options)
    from labelwise.data.stream_sources import open_stream

    return open_stream(source.path, source.format, {**source.options, **options}, labels)


def open_data(
    data: str | Path | pandas.DataFrame, *, labels: Sequence[str] | None = None, **options: Any
) -> LabelTable:
    """Read a dataset in any known format.

    Args:
        data: A path, whose format is recognised, or `format:path`, e.g. `photos.csv` or `voc:/data/VOCdevkit`; or a
            pandas DataFrame with the columns of a manifest.
        labels: Fixes the columns: a subset or another order of the dataset's labels. Where images list the names of
            their labels, also names that no image has, if all others are there.
        options: The reader's own; they may also stand in the string: `voc:/data?year=2012`.

    Returns:
        The images with their labels and splits. Images are not read yet. What the reader had to assume is in its
        `notes`.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "photos.csv").write_text("image,labels,split\\na.jpg,cat|dog,train\\nb.jpg,dog,test\\n")
    >>> table = open_data(folder / "photos.csv", check_files="no")
    >>> table.labels, table.split_names
    (('cat', 'dog'), ('train', 'test'))
    """
    table = read_data(data, labels=labels, **options)
    for note in table.notes:
        tell(note)
    return table


def read_data(
    data: str | Path | pandas.DataFrame, *, labels: Sequence[str] | None = None, **options: Any
) -> LabelTable:
    """As `open_data`, but its notes are not told: for what is read once more."""
    given: ReaderOptions
    if is_frame(data):
        given = frame_options = parse_options(ManifestOptions, options, "DataFrame")
        table = read_frame(data, frame_options, None if given.merge_variants else labels)
        fix = "Paths are relative to the current folder; say where the images are"
    else:
        table, given, fix = _read(data, labels, options)
    table = check_files(table, given, fix)
    notes = [*table.notes]
    if given.merge_variants:
        table = merged_variants(table, labels or ())
    elif note := variant_note(table):
        notes.append(note)
    if labels is not None and table.labels != tuple(labels):
        if left_out := labels_not_in(labels, table.labels):
            found = counted(len(left_out), "label is", "labels are")
            notes.append(f"{table.source}: {found} not among the chosen ones and ignored: {shortened(left_out)}")
        table = table.with_labels(labels)
    return replace(table, notes=tuple(notes))


def _read(
    data: str | Path, labels: Sequence[str] | None, options: Mapping[str, Any]
) -> tuple[LabelTable, ReaderOptions, str]:
    """The table, its reader's options, and what to do about images that are not there."""
    source = parse_source(data)
    if is_streamed(data):
        raise LabelwiseError(
            f"{data} is a stream of shards, which can be trained and evaluated on; here images in files are needed. "
            f"Unpack them with: labelwise data convert {data} --to csv --out photos"
        )
    path = Path(source.path)
    if not path.exists():
        raise LabelwiseError(
            f"there is no file or folder {source.path!r}"
            + f" in {str(Path.cwd())!r}" * (not path.is_absolute())
            + f" (from the data argument {str(data)!r})" * (str(data) != source.path)
        )
    format = find_format(source.format) if source.format else _recognise(path)
    given = parse_options(format.options, {**source.options, **options}, f"format {format.name!r}")
    try:
        table = format.read(path, given, None if given.merge_variants else labels)
    except FileNotFoundError as error:
        raise LabelwiseError(f"{error.filename or error} is missing") from None
    except (OSError, UnicodeDecodeError) as error:  # a folder where a file is needed, no permission, not text, ...
        raise LabelwiseError(f"cannot read {path} as {format.name}: {error}") from None
    if len(table) == 0:
        raise LabelwiseError(f"{data} holds no images ({format.name} format: {format.looks_like})")
    return replace(table, source=table.source or source.path), given, format.missing_image_fix


def is_frame(data: object) -> TypeGuard[pandas.DataFrame]:
    """Whether it is a pandas DataFrame; if pandas was never imported, nothing is."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def as_table(data: LabelTable | pandas.DataFrame | str | Path, **options: Any) -> LabelTable:
    """A table as it is; anything else through `open_data`."""
    if not isinstance(data, LabelTable):
        return open_data(data, **options)
    if options:
        raise LabelwiseError(f"{next(iter(options))} is for a reader, and this table has been read; leave it out")
    return data


def _recognise(path: Path) -> Format:
    for format in list_formats():
        if format.recognise(path):
            return format
    looked_for = "; ".join(f"{format.name}: {format.looks_like}" for format in list_formats())
    kind = "folder" if path.is_dir() else "file"
    looked_for += next(_hints(path), "")
    if path.is_dir() and next(path.glob("*.tar"), None):
        looked_for += f"; the tar files in it can be read as webdataset:{path}"
    raise LabelwiseError(f"cannot tell the format of the {kind} {path}; say it as format:path. Looked for {looked_for}")


def _hints(path: Path) -> Iterator[str]:
    """What can be done instead with a file, or with those in a folder: a sheet says more than the folders beside it."""
    entries = sorted(path.iterdir(), key=lambda entry: (entry.is_dir(), entry)) if path.is_dir() else [path]
    for entry in entries:
        if (hint := _NOT_READ.get(entry.suffix.lower())) is not None:
            yield f"; {entry} cannot be read as it is: {hint}"
        elif entry.is_dir() and any(format.recognise(entry) for format in list_formats()):
            yield f"; {entry} can be read"
