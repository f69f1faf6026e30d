"""A list of images and labels: CSV, TSV, JSONL or Parquet. Columns are found by name or given."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.data.readers.base import Names, ReaderOptions, register_format
from labelwise.data.readers.records import (
    PREDICTION_COLUMNS,
    Records,
    entries_of_columns,
    entries_of_names,
    read_records,
)
from labelwise.data.table import ABSENT, UNKNOWN, LabelTable, canonical_split

# Column names that are recognised, in order of preference; case, blanks and hyphens do not matter.
IMAGE_COLUMNS = ("image", "image_path", "img", "img_path", "image_file", "filepath", "file_path", "path", "file",
                 "filename", "file_name", "image_name")  # fmt: skip
LABEL_COLUMNS = ("labels", "label", "tags", "tag", "classes", "class", "categories", "category", "keywords")
SPLIT_COLUMNS = ("split", "split_name", "set", "subset", "fold", "partition")
UNKNOWN_COLUMNS = ("unknown", "unknown_labels")
MANIFEST_KINDS = ("csv", "tsv", "jsonl", "parquet")
KIND_OF_SUFFIX = {f".{kind}": kind for kind in MANIFEST_KINDS} | {".tab": "tsv", ".ndjson": "jsonl"}


class ManifestOptions(ReaderOptions):
    """Options of the formats `csv`, `tsv`, `jsonl`, `parquet` and `manifest`.

    Args:
        image_column: The column of image paths. Default: found by its name, as all columns are.
        label_column: The column that lists the names of an image's labels.
        label_columns: One column per label, with 1, 0 or -1. Default without a label column: all other columns.
        ignore_columns: Columns that are not labels, where every other column is one.
        split_column: The column of split names.
        unknown_column: The column that lists labels whose presence is not known.
        separator: Between names in a cell: a character, or space, tab, comma, semicolon, pipe. Default: found.
        delimiter: Between the fields of a CSV: a character, or comma, semicolon, tab. Default: found.
        encoding: Of the text file.
        root: What image paths are relative to. Default: the manifest's folder.
        splits: The only split names allowed. Default: train, val, test and folds.
        duplicates: An image on several rows that say different things is an error, or the rows are merged.
    """

    image_column: str | None = None
    label_column: str | None = None
    label_columns: Names | None = None
    ignore_columns: Names = ()
    split_column: str | None = None
    unknown_column: str | None = None
    separator: str | None = None
    delimiter: str | None = None
    encoding: str = "utf-8"
    root: str | None = None
    splits: Names | None = None
    duplicates: Literal["error", "merge"] = "error"


def read_manifest(
    path: Path, options: ManifestOptions, labels: Sequence[str] | None, kind: str | None = None
) -> LabelTable:
    """Without `labels`: the names that occur, sorted, or the columns' order where there is one column per label."""
    kind = kind or KIND_OF_SUFFIX.get(path.suffix.lower(), "csv")
    records = read_records(path, kind, options.delimiter, options.encoding)
    image_column = _column(records, "image", options.image_column, IMAGE_COLUMNS)
    if image_column is None:
        raise LabelwiseError(
            f"{path} has no image column: it has {', '.join(records.columns)}; rename one to 'image', or name it with "
            "image_column="
        )
    split_column = _column(records, "split", options.split_column, SPLIT_COLUMNS)
    unknown_column = _column(records, "unknown", options.unknown_column, UNKNOWN_COLUMNS)
    label_column = None
    if options.label_columns is None:
        label_column = _column(records, "label", options.label_column, LABEL_COLUMNS)
    if label_column:
        # What `labelwise predict --csv` wrote needs no guess, which `hot dog` alone in every cell would mislead.
        separator = "|" if records.columns == PREDICTION_COLUMNS else None
        names, entries = entries_of_names(records, label_column, unknown_column, options.separator or separator, labels)
    else:
        if options.unknown_column:
            raise LabelwiseError(
                f"{path}: unknown_column= needs a label column; in a column per label leave cells empty"
            )
        for name in options.ignore_columns:
            _column(records, "ignored", name)
        used = {image_column, split_column, *options.ignore_columns}
        columns = options.label_columns or [name for name in records.columns if name not in used]
        # Where rows are merged, a 0 that is written down counts for more than an unknown.
        names, entries = entries_of_columns(records, columns, keep_absent=options.duplicates == "merge")

    folder = os.path.dirname(path)
    images = [image_path(cell, folder, options.root, records.at(line)) for line, cell in records.cells(image_column)]
    splits = [""] * len(images)
    if split_column:
        splits = [split_of(cell, options.splits, records.at(line)) for line, cell in records.cells(split_column)]
    rows = _without_repeats(map(_Row, records.lines, images, splits, entries), path, options.duplicates)
    # What is absent need not be listed any more.
    values = ({column: value for column, value in row.values.items() if value != ABSENT} for row in rows)
    lines = np.array([row.line for row in rows], np.int64)
    return LabelTable.from_rows(
        [row.image for row in rows], values, names, splits=[row.split for row in rows], lines=lines
    )


# ---- rows

# train, val, test and variants like test2 or val-unseen, and numbered folds
_USUAL_SPLIT = re.compile(r"|(train|val|test)([-_ ]?\d+|[-_]\w+)?|trainval|(fold|split)?[-_ ]?\d+")


def is_usual_split(name: str) -> bool:
    return _USUAL_SPLIT.fullmatch(name) is not None


def split_of(cell: Any, allowed: Sequence[str] | None, where: str) -> str:
    """The split a cell names; a name that is neither usual nor `allowed` is a mistake.

    >>> split_of("Validation", None, "photos.csv row 2"), split_of("holdout", ["train", "holdout"], "photos.csv row 2")
    ('val', 'holdout')
    """
    name = canonical_split("" if cell is None else str(cell))
    if allowed is not None and name not in {canonical_split(split) for split in allowed}:
        raise unknown_name("split", name, allowed, where)
    if allowed is None and not is_usual_split(name):
        problem = unknown_name("split", name, ("train", "val", "test"), where)
        raise LabelwiseError(f"{problem}. If it is meant, add splits=train,val,{name}")
    return name


def image_path(cell: Any, folder: str, root: str | None, where: str) -> str:
    """The path of an image: below `root` if given, else relative to the manifest's folder.

    >>> image_path("img/1.jpg", "data", None, ""), image_path("img/1.jpg", "data", "/photos", "")
    ('data/img/1.jpg', '/photos/img/1.jpg')
    """
    if cell is None or cell == "" or str(cell).isspace():
        raise LabelwiseError(f"{where}: the image column is empty")
    if not isinstance(cell, str):
        raise LabelwiseError(f"{where}: the image column holds a {type(cell).__name__}, not a path")
    image = cell.strip()
    if os.sep == "/" and "\\" in image and "/" not in image:
        image = image.replace("\\", "/")  # written on Windows
    if root is None:
        return os.path.join(folder, image)
    if os.path.isabs(image):
        # The images moved: the longest end of the old path that exists below the new root.
        parts = image.split("/")[1:]
        ends = (os.path.join(root, *parts[n:]) for n in range(len(parts)))
        return next((end for end in ends if os.path.exists(end)), os.path.join(root, parts[-1]))
    return os.path.join(root, image)


class _Row(NamedTuple):
    line: int
    image: str
    split: str
    values: dict[int, int]  # by column


def _without_repeats(rows: Iterable[_Row], file: Path, duplicates: str) -> list[_Row]:
    """The first row of each image. The labels of later ones are joined into it if `duplicates` is merge."""
    kept: dict[str, _Row] = {}
    for row in rows:
        first = kept.setdefault(os.path.normpath(row.image), row)
        if first is row:
            continue
        problem = f"{file} row {row.line}: image {row.image!r}"
        if row.split != first.split:
            raise LabelwiseError(
                f"{problem} is in split {row.split!r}, but in {first.split!r} in row {first.line}; delete one row"
            )
        if row.values != first.values and duplicates == "error":
            raise LabelwiseError(
                f"{problem} has other labels than in row {first.line}; correct one of them, or join the labels of all "
                "rows of an image with duplicates=merge"
            )
        for column, value in row.values.items():
            first.values[column] = max(value, first.values.get(column, UNKNOWN))
    return list(kept.values())


# ---- columns


def plain_column(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def find_column(columns: Iterable[str], usual: Sequence[str]) -> str | None:
    """The column that is called like the first of the `usual` names that there is."""
    found = {plain_column(name): name for name in columns}
    return next((found[name] for name in usual if name in found), None)


def _column(records: Records, what: str, given: str | None, usual: Sequence[str] = ()) -> str | None:
    if given is not None and given not in records.columns:
        raise unknown_name(f"{what} column", given, records.columns, records.file)
    return given or find_column(records.columns, usual)


# ---- formats

_MISSING_IMAGE = (
    "Paths are relative to the manifest's folder; if the images are elsewhere, say where with root=, or leave such "
    "rows out with check_files=drop."
)


def _is_kind(kind: str, path: Path) -> bool:
    return path.is_file() and KIND_OF_SUFFIX.get(path.suffix.lower()) == kind


for _kind in MANIFEST_KINDS:
    register_format(
        _kind,
        options=ManifestOptions,
        recognise=partial(_is_kind, _kind),
        looks_like=f"a file *.{_kind}",
        missing_image_fix=_MISSING_IMAGE,
    )(partial(read_manifest, kind=_kind))


def _manifests_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.is_file() and file.suffix.lower() in KIND_OF_SUFFIX)


@register_format(
    "manifest",
    options=ManifestOptions,
    recognise=lambda path: path.is_dir() and bool(_manifests_in(path)),
    looks_like="a folder with one .csv, .tsv, .jsonl or .parquet file",
    priority=-1,  # datasets with a layout of their own also hold such files
    missing_image_fix=_MISSING_IMAGE,
)
def read_manifest_folder(path: Path, options: ManifestOptions, labels: Sequence[str] | None) -> LabelTable:
    """The only manifest in a folder."""
    files = [path] if path.is_file() else _manifests_in(path)
    if len(files) != 1:
        raise LabelwiseError(
            f"{path} holds {len(files)} manifests ({', '.join(f.name for f in files)}); name one of them"
        )
    return replace(read_manifest(files[0], options, labels), source=str(files[0]))
