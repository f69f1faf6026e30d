"""A list of images and labels: CSV, TSV, JSON, JSONL, Parquet or a DataFrame. Columns are found by name, by content, or
given."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from labelwise.core.errors import LabelwiseError, shortened, unknown_name
from labelwise.data.readers.base import Names, ReaderOptions, register_format
from labelwise.data.readers.cells import (
    LIKELY_LABELS,
    Entries,
    cell_value,
    column_of_names,
    entries_of_columns,
    entries_of_names,
    joined_columns,
    numbered_columns,
    separator_of,
)
from labelwise.data.readers.exports import is_export
from labelwise.data.readers.finding import ImageFinder
from labelwise.data.readers.records import PREDICTION_COLUMNS, Records, frame_records, read_records
from labelwise.data.table import ABSENT, SPLITS, UNKNOWN, LabelTable, canonical_split

if TYPE_CHECKING:
    import pandas

# Column names that are recognised, in order of preference; case, blanks and hyphens do not matter.
IMAGE_COLUMNS = ("image", "image_path", "img", "img_path", "image_file", "filepath", "file_path", "path", "file",
                 "filename", "file_name", "image_name")  # fmt: skip
LABEL_COLUMNS = ("labels", "label", "tags", "tag", "classes", "class", "categories", "category", "keywords")
SPLIT_COLUMNS = ("split", "split_name", "set", "subset", "fold", "partition")
UNKNOWN_COLUMNS = ("unknown", "unknown_labels")
MANIFEST_KINDS = ("csv", "tsv", "jsonl", "parquet")
KIND_OF_SUFFIX = {f".{kind}": kind for kind in MANIFEST_KINDS} | {".tab": "tsv", ".ndjson": "jsonl"}
_SEPARATOR_NAMES = {None: "white space", "": "no separator"}


class ManifestOptions(ReaderOptions):
    """Options of the formats `csv`, `tsv`, `json`, `jsonl`, `parquet` and `manifest`, and of DataFrames.

    Args:
        image_column: The column of image paths. Default: found by its name, or by its content: names of files in the
            table's folder or below it, with or without their ending.
        label_column: The column that lists the names of an image's labels.
        label_columns: One column per label, with 1, 0 or -1. Default without a label column: all other columns.
        blank: What an empty cell in a column per label is. Default: unknown; absent if no cell says 0 or no, as in a
            checklist of x and blanks.
        ignore_columns: Columns that are not labels, where every other column is one.
        split_column: The column of split names.
        unknown_column: The column that lists labels whose presence is not known.
        separator: Between names in a cell: a character, or space, tab, comma, semicolon, pipe. Default: found.
        delimiter: Between the fields of a CSV: a character, or comma, semicolon, tab. Default: found.
        encoding: Of the text file. Default: UTF-8, else Windows' (cp1252) if all of it can be read so and nothing in it
            is UTF-8, which is reported in `table.notes`.
        root: What image paths are relative to. Default: the manifest's folder.
        splits: The only split names allowed. Default: train, val, test and folds.
        duplicates: An image on several rows that say different things is an error, or the rows are merged.
        bad_rows: Rows of a CSV with wrong quotes in a column that is needed, or too many fields, are an error, or left
            out ("skip").
    """

    image_column: str | None = None
    label_column: str | None = None
    label_columns: Names | None = None
    blank: Literal["absent", "unknown"] | None = None
    ignore_columns: Names = ()
    split_column: str | None = None
    unknown_column: str | None = None
    separator: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    root: str | None = None
    splits: Names | None = None
    duplicates: Literal["error", "merge"] = "error"
    bad_rows: Literal["error", "skip"] = "error"


def read_manifest(
    path: Path, options: ManifestOptions, labels: Sequence[str] | None, kind: str | None = None
) -> LabelTable:
    """Without `labels`: the names that occur, sorted, or the columns' order where there is one column per label."""
    kind = kind or KIND_OF_SUFFIX.get(path.suffix.lower(), "json" if is_export(path) else "csv")
    records = read_records(path, kind, options.delimiter, options.encoding, options.bad_rows)
    return _table(records, os.path.dirname(path), options, labels)


def read_frame(frame: pandas.DataFrame, options: ManifestOptions, labels: Sequence[str] | None) -> LabelTable:
    """A DataFrame, as if it were a file in the current folder."""
    records = frame_records(frame)
    return replace(_table(records, "", options, labels), source=records.file)


def _table(records: Records, folder: str, options: ManifestOptions, labels: Sequence[str] | None) -> LabelTable:
    finder = ImageFinder(folder, options.root)
    image_column, is_guess = _image_column(records, options.image_column, finder)
    split_column = _column(records, "split", options.split_column, SPLIT_COLUMNS)
    for name in options.ignore_columns:
        _column(records, "ignored", name)
    names, entries, guess = _labels(records, {image_column, split_column}, options, labels)
    cells = ((records.at(line), cell) for line, cell in records.cells(image_column))
    images, example = finder.paths(cells)
    found = f"images from column {image_column!r}" if is_guess or example else ""
    assumed = [f"{found} ({example})" if example else found, guess]
    splits = [""] * len(images)
    if split_column:
        splits = [split_of(cell, options.splits, records.at(line)) for line, cell in records.cells(split_column)]
        if len(set(splits)) > _MOST_SPLITS:
            raise LabelwiseError(
                f"{records.file}: column {split_column!r} names {len(set(splits))} splits; if it holds something else, "
                "rename it, or name the right one with split_column="
            )
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise LabelwiseError(f"{records.file}: label {name!r} holds half of a character; correct it") from None
    rows = _without_repeats(map(_Row, records.lines, images, splits, entries), records.file, options.duplicates)
    # What is absent need not be listed any more.
    values = ({column: value for column, value in row.values.items() if value != ABSENT} for row in rows)
    told = "; ".join(filter(None, [*assumed, *records.notes]))
    return LabelTable.from_rows(
        [row.image for row in rows],
        values,
        names,
        splits=[row.split for row in rows],
        lines=np.array([row.line for row in rows], np.int64),
        notes=(f"{records.file}: {told}",) if told else (),
    )


def _labels(
    records: Records, used: set[str | None], options: ManifestOptions, labels: Sequence[str] | None
) -> tuple[list[str], Entries, str]:
    """The label names, the entries of each row, and in a few words what had to be assumed."""
    unknown_column = _column(records, "unknown", options.unknown_column, UNKNOWN_COLUMNS)
    others = [name for name in records.columns if name not in used and name not in options.ignore_columns]
    label_column, guess = None, ""
    no_labels: list[str] = []
    if options.label_columns is None:
        label_column = _column(records, "label", options.label_column, LABEL_COLUMNS)
        if label_column is None:
            known = [name for name in others if name != unknown_column]
            if several := numbered_columns(records, known, _names_labels):
                label_column = guess = f"labels from columns {shortened(list(map(repr, several)))}"
                joined, separators = joined_columns(records, several, options.separator)
                records = replace(records, values={**records.values, label_column: joined})
                guess += f", separated by {separators}" if separators else ""
            else:
                label_column, no_labels = column_of_names(records, known, plain_column)
                guess = f"labels from column {label_column!r}" if label_column else ""
    if label_column is None:
        if options.unknown_column:
            raise LabelwiseError(
                f"{records.file}: unknown_column= needs a label column; in a column per label leave cells empty"
            )
        # Where rows are merged, a 0 that is written down counts for more than an unknown.
        keep_absent = options.duplicates == "merge"
        columns = options.label_columns or [name for name in others if name not in no_labels]
        names, entries, assumed = entries_of_columns(records, columns, keep_absent, options.blank)
        left_out = f"numbers of rows, no labels: {shortened(list(map(repr, no_labels)))}" if no_labels else ""
        return names, entries, "; ".join(filter(None, [left_out, assumed]))
    # What `labelwise predict --csv` wrote needs no guess, which `hot dog` alone in every cell would mislead.
    given = options.separator or ("|" if records.columns == PREDICTION_COLUMNS else None)
    listing = filter(None, (label_column, unknown_column))
    separator = separator_of([cell for column in listing for _, cell in records.cells(column)], given)
    if given is None and separator not in ("|", ""):
        between = f"labels separated by {_SEPARATOR_NAMES.get(separator, repr(separator))}"
        guess = f"{guess}, {between.removeprefix('labels ')}" if guess else between
    return *entries_of_names(records, label_column, unknown_column, separator, labels), guess


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
        problem = unknown_name("split", name, SPLITS, where)
        raise LabelwiseError(f"{problem}. If it is meant, add splits=train,val,{name}")
    return name


class _Row(NamedTuple):
    line: int
    image: str
    split: str
    values: dict[int, int]  # by column


def _without_repeats(rows: Iterable[_Row], file: str, duplicates: str) -> list[_Row]:
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
                "rows of an image",
                options={"duplicates": "merge"},
            )
        for column, value in row.values.items():
            first.values[column] = max(value, first.values.get(column, UNKNOWN))
    return list(kept.values())


# ---- columns

_NOT_IMAGES = {*LABEL_COLUMNS, *LIKELY_LABELS, *SPLIT_COLUMNS, *UNKNOWN_COLUMNS}
_MOST_SPLITS = 1000
_LOOKED_AT = 100  # cells
_ROBOFLOW = "_classes.csv"  # one column per label
_FIFTYONE_FILES = ("labels.json", "samples.json")


def plain_column(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _names_labels(name: str) -> bool:
    """Whether a column's name without its number is usual for labels: `tag`, `labels`, `keyword`."""
    return not {plain_column(name), f"{plain_column(name)}s"}.isdisjoint(LABEL_COLUMNS)


def find_column(columns: Iterable[str], usual: Sequence[str]) -> str | None:
    """The column that is called like the first of the `usual` names that there is."""
    found = {plain_column(name): name for name in columns}
    return next((found[name] for name in usual if name in found), None)


def _column(records: Records, what: str, given: str | None, usual: Sequence[str] = ()) -> str | None:
    if given is not None and given not in records.columns:
        raise unknown_name(f"{what} column", given, records.columns, records.file)
    return given or find_column(records.columns, usual)


def _image_column(records: Records, given: str | None, finder: ImageFinder) -> tuple[str, bool]:
    """The column of image paths: the first that is called so and holds files, else any that does. If none does, the
    first that is called so. Also whether it was recognised by its content alone."""
    if given is not None:
        return _column(records, "image", given) or given, False
    plain = {plain_column(name): name for name in reversed(records.columns)}
    named = [plain[name] for name in IMAGE_COLUMNS if name in plain]
    for name in named:
        if finder.share(records.values[name]) > 0:
            return name, False
    best, most = None, 0.5
    for name in records.columns:
        cells = records.values[name]
        if plain_column(name) in _NOT_IMAGES or all(cell_value(cell) is not None for cell in cells[:_LOOKED_AT]):
            continue
        share = finder.share(cells)
        # Numbers of labels may be names of files, too, but they repeat.
        if share and (score := share * len(set(map(str, cells))) / len(cells)) > most:
            best, most = name, score
    if best is not None:
        return best, True
    if named:
        return named[0], False
    raise LabelwiseError(
        f"{records.file} has no image column: it has {shortened(records.columns, 20)}, and none of them names files in "
        f"{finder.base or 'the current folder'} or below; rename one to 'image', name it, or say where the images "
        "are",
        options={"image_column": ..., "root": ...},
        either=True,
    )


# ---- formats

_MISSING_IMAGE = "Paths are relative to the manifest's folder; say where the images are"


def _is_kind(kind: str, path: Path) -> bool:
    return is_export(path) if kind == "json" else path.is_file() and KIND_OF_SUFFIX.get(path.suffix.lower()) == kind


for _kind in (*MANIFEST_KINDS, "json"):
    register_format(
        _kind,
        options=ManifestOptions,
        recognise=partial(_is_kind, _kind),
        looks_like=f"a file *.{_kind}",
        priority=1,  # before COCO: a .json file that is a list, or fiftyone's, is not one of its
        missing_image_fix=_MISSING_IMAGE,
    )(partial(read_manifest, kind=_kind))


def _manifests_in(folder: Path) -> list[Path]:
    """The manifests of a folder; where it has none, Roboflow's, one for each split."""
    files = (file for file in folder.iterdir() if file.is_file())
    found = (f for f in files if f.suffix.lower() in KIND_OF_SUFFIX or (f.name in _FIFTYONE_FILES and is_export(f)))
    return sorted(found) or sorted(folder.glob(f"*/{_ROBOFLOW}"))


@register_format(
    "manifest",
    options=ManifestOptions,
    recognise=lambda path: path.is_dir() and bool(_manifests_in(path)),
    looks_like=f"a folder with one .csv, .tsv, .jsonl or .parquet file, or train/{_ROBOFLOW}",
    priority=-1,  # datasets with a layout of their own also hold such files
    missing_image_fix=_MISSING_IMAGE,
)
def read_manifest_folder(path: Path, options: ManifestOptions, labels: Sequence[str] | None) -> LabelTable:
    """The only manifest in a folder, or Roboflow's of all splits."""
    files = [path] if path.is_file() else _manifests_in(path)
    if files and all(file.name == _ROBOFLOW and file.parent != path for file in files):
        return _table(_joined(files, path, options), str(path), options, labels)
    if len(files) != 1:
        raise LabelwiseError(
            f"{path} holds {len(files)} manifests ({', '.join(f.name for f in files)}); name one of them"
        )
    return replace(read_manifest(files[0], options, labels), source=str(files[0]))


def _joined(files: Sequence[Path], folder: Path, options: ManifestOptions) -> Records:
    """The rows of the manifests in the folders of the splits, which lie beside the images."""
    parts = [read_records(file, "csv", options.delimiter, options.encoding, options.bad_rows) for file in files]
    for file, part in zip(files, parts, strict=True):
        if part.columns != parts[0].columns:
            raise LabelwiseError(f"{file} has other columns than {files[0]}; read them one by one")
    image, *others = parts[0].columns
    names = [
        os.path.join(file.parent.name, cell)
        for file, part in zip(files, parts, strict=True)
        for _, cell in part.cells(image)
    ]
    splits = [file.parent.name for file, part in zip(files, parts, strict=True) for _ in part.lines]
    values = {name: list(chain.from_iterable(part.values[name] for part in parts)) for name in others}
    lines = list(chain.from_iterable(part.lines for part in parts))
    return Records(str(folder / "*" / _ROBOFLOW), {"image": names, "split": splits, **values}, lines)
