"""The data argument: a path, `format:path`, or `format:path?option=value`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from labelwise.core.errors import LabelwiseError
from labelwise.data.readers.base import Format, check_files, find_format, list_formats, parse_options
from labelwise.data.table import LabelTable

STREAMED_FORMATS = ("webdataset", "hf")


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


def is_streamed(data: str | Path) -> bool:
    """Whether the argument names shards that `labelwise.loading.stream.open_stream` reads, not a table.

    >>> is_streamed("hf:photos"), is_streamed("shards/train-{000..009}.tar"), is_streamed("photos.csv")
    (True, True, False)
    """
    source = parse_source(data)
    return source.format in STREAMED_FORMATS or (source.format is None and source.path.endswith(".tar"))


def open_data(data: str | Path, *, labels: Sequence[str] | None = None, **options: Any) -> LabelTable:
    """Read a dataset in any known format.

    Args:
        data: A path, whose format is recognised, or `format:path`, e.g. `photos.csv` or `voc:/data/VOCdevkit`.
        labels: Fixes the columns: a subset or another order of the dataset's labels, or, for a manifest, the complete
            list of names it may use.
        options: The reader's own; they may also stand in the string: `voc:/data?year=2012`.

    Returns:
        The images with their labels and splits. Images are not read yet.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "photos.csv").write_text("image,labels,split\\na.jpg,cat|dog,train\\nb.jpg,dog,test\\n")
    >>> table = open_data(folder / "photos.csv", check_files="no")
    >>> table.labels, table.split_names
    (('cat', 'dog'), ('train', 'test'))
    """
    source = parse_source(data)
    if is_streamed(data):
        raise LabelwiseError(
            f"{data} is a stream of shards, not a table; read it with labelwise.loading.stream.open_stream"
        )
    path = Path(source.path)
    if not path.exists():
        raise LabelwiseError(f"there is no file or folder {source.path!r} (from the data argument {str(data)!r})")
    format = find_format(source.format) if source.format else _recognise(path)
    given = parse_options(format.options, {**source.options, **options}, f"format {format.name!r}")
    try:
        table = format.read(path, given, labels)
    except FileNotFoundError as error:
        raise LabelwiseError(f"{error.filename or error} is missing") from None
    except (OSError, UnicodeDecodeError) as error:  # a folder where a file is needed, no permission, not text, ...
        raise LabelwiseError(f"cannot read {path} as {format.name}: {error}") from None
    table = replace(table, source=table.source or source.path)
    if len(table) == 0:
        raise LabelwiseError(f"{data} holds no images ({format.name} format: {format.looks_like})")
    table = check_files(table, given.check_files, format.missing_image_fix)
    if labels is not None and table.labels != tuple(labels):
        table = table.with_labels(labels)
    return table


def as_table(data: LabelTable | str | Path, **options: Any) -> LabelTable:
    """A table as it is; a path or `format:path` through `open_data`. Options in the string win over `options`."""
    if isinstance(data, LabelTable):
        return data
    given = parse_source(data).options
    return open_data(data, **{name: value for name, value in options.items() if name not in given})


def _recognise(path: Path) -> Format:
    for format in list_formats():
        if format.recognise(path):
            return format
    looked_for = "; ".join(f"{format.name}: {format.looks_like}" for format in list_formats())
    kind = "folder" if path.is_dir() else "file"
    if path.is_dir() and next(path.glob("*.tar"), None):
        looked_for += f"; the tar files in it can be read as webdataset:{path}"
    raise LabelwiseError(f"cannot tell the format of the {kind} {path}; say it as format:path. Looked for {looked_for}")
