"""Write a table as a manifest: CSV, TSV, JSONL or Parquet."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.core.errors import LabelwiseError, counted, shortened, unknown_name
from labelwise.core.files import atomic_write
from labelwise.core.tables import is_formula
from labelwise.data.readers.manifest import LABEL_COLUMNS, MANIFEST_KINDS, SPLIT_COLUMNS, plain_column
from labelwise.data.readers.records import require_pyarrow
from labelwise.data.table import PRESENT, UNKNOWN, LabelTable

_NO_LABELS = {"image", *SPLIT_COLUMNS, *LABEL_COLUMNS}  # what a reader takes a column of this name for


def write_manifest(table: LabelTable, path: str | Path, *, columns: bool = False) -> None:
    """Write a table as a list of images and labels that `open_data` reads back.

    Args:
        table: Images, labels and splits. Image paths are written relative to the manifest's folder.
        path: The suffix decides the kind: `.csv`, `.tsv`, `.jsonl` or `.parquet`.
        columns: One column per label with 1, 0 or -1, instead of one column with the names of the present labels (and
            one with those of unknown labels). This also keeps labels that no image has, and the order of the labels.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "photos.csv"
    >>> write_manifest(LabelTable.from_lists([str(file.parent / "a.jpg")], [["cat", "dog"]]), file)
    >>> file.read_text()
    'image,labels\\na.jpg,cat|dog\\n'
    """
    file = Path(path)
    kind = file.suffix.lower().removeprefix(".")
    if kind not in MANIFEST_KINDS:
        raise unknown_name("kind of manifest", kind, MANIFEST_KINDS)
    rows = _rows(table, file.parent, columns, as_text=kind in ("csv", "tsv"))
    try:
        atomic_write(file, lambda draft: _write(rows, draft, kind))
    except UnicodeEncodeError as error:
        name = error.object[max(0, error.start - 60) : error.end + 20].splitlines()[-1]
        raise LabelwiseError(f"a manifest is UTF-8, and this file name is not: {name!r}; rename the file") from None


def lost_label_notes(table: LabelTable, fix: str = "", keeps_unknown: bool = True) -> list[str]:
    """A note about labels that lists of names cannot keep: they are neither present nor unknown in any image."""
    seen = table.positives_per_label() + (table.unknown_per_label() if keeps_unknown else 0)
    lost = [name for name, count in zip(table.labels, seen.tolist(), strict=True) if not count]
    found = counted(len(lost), "label that no image has is", "labels that no image has are")
    return [f"{found} gone ({shortened(lost)}){fix}"] if lost else []


def row_names(table: LabelTable, row: int) -> tuple[list[str], list[str]]:
    """The names of the present and of the unknown labels of one image."""
    values = table.target(row)
    return (
        [table.labels[c] for c in np.flatnonzero(values == PRESENT)],
        [table.labels[c] for c in np.flatnonzero(values == UNKNOWN)],
    )


def relative_path(image: str, folder: Path) -> str:
    """The path of an image, relative to `folder`. In a linked folder, `..` leads to the parent of the link's target.
    One that a spreadsheet would take for a formula starts with `./`, which leads to the same file."""
    real, is_linked = _real_folder(os.path.abspath(folder))  # absolute: the working directory may change
    if is_linked:
        image = os.path.join(os.path.realpath(os.path.dirname(image)), os.path.basename(image))
    path = os.path.relpath(image, real)
    return os.path.join(os.curdir, path) if is_formula(path) else path


@lru_cache(maxsize=8)
def _real_folder(folder: str) -> tuple[str, bool]:
    real = os.path.realpath(folder)
    return real, real != folder


def _rows(table: LabelTable, folder: Path, columns: bool, as_text: bool) -> Iterator[dict[str, Any]]:
    """The cells of each image, by their columns."""
    taken = next((name for name in table.labels if plain_column(name) in _NO_LABELS), None)
    if columns and taken is not None:
        raise LabelwiseError(f"a label is called {taken!r} like a column of the manifest; write names, not columns")
    has_splits, has_unknown = table.split_names != ("",), bool(table.unknown_per_label().any())
    listed: Callable[[list[str]], object] = list  # what is written for a list of names
    if as_text and not columns:
        listed = "|".join if _names_are_plain(table) else json.dumps
    for row in range(len(table)):
        cells: dict[str, Any] = {"image": relative_path(table.images[row], folder)}
        if has_splits:
            cells["split"] = table.splits[row]
        if columns:
            yield cells | dict(zip(table.labels, table.target(row).tolist(), strict=True))
            continue
        present, unknown = row_names(table, row)
        yield cells | {"labels": listed(present)} | ({"unknown": listed(unknown)} if has_unknown else {})


def is_plain_name(label: str) -> bool:
    """Whether a label can stand in a cell like `a|b`. Otherwise the cell is a JSON list: `["=a"]` is not a formula."""
    return not set(label) & set("|;,") and not label.startswith(("[", "{", "(")) and not is_formula(label)


def _names_are_plain(table: LabelTable) -> bool:
    """Whether `a|b` cannot be misread: no name holds a separator, and it occurs (or `hot dog` might be split)."""
    if not all(map(is_plain_name, table.labels)):
        return False
    return any(len(names) > 1 for row in range(len(table)) for names in row_names(table, row))


def _write(rows: Iterator[dict[str, Any]], path: Path, kind: str) -> None:
    if kind == "parquet":
        pyarrow = require_pyarrow()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        if kind == "jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        for number, row in enumerate(rows):
            if number == 0:
                writer = csv.DictWriter(file, list(row), delimiter="\t" if kind == "tsv" else ",", lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
