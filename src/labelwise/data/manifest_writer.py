"""Write a table as a CSV, TSV, JSONL or Parquet manifest that `open_data` reads back."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.atomic_file import follow_umask
from labelwise.data.readers.manifest import LABEL_COLUMNS, SPLIT_COLUMNS, plain_column
from labelwise.data.table import PRESENT, UNKNOWN, LabelTable
from labelwise.errors import LabelwiseError, missing_extra, unknown_name

_NO_LABELS = {"image", *SPLIT_COLUMNS, *LABEL_COLUMNS}  # what a reader takes a column of this name for
MANIFEST_KINDS = ("csv", "tsv", "jsonl", "parquet")


def write_manifest(table: LabelTable, path: str | Path, *, columns: bool = False) -> None:
    """The kind by the suffix: `.csv`, `.tsv`, `.jsonl`, `.parquet`. Image paths are written relative to its folder.

    Names of the present labels go into one column, those of unknown ones into another; with `columns` there is one
    column per label instead, with 1, 0 or -1, which also keeps labels that no image has, and their order.
    """
    file = Path(path)
    kind = file.suffix.lower().removeprefix(".")
    if kind not in MANIFEST_KINDS:
        raise unknown_name("kind of manifest", kind, MANIFEST_KINDS)
    rows = (
        _column_rows(table, file.parent) if columns else _name_rows(table, file.parent, as_text=kind in ("csv", "tsv"))
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    os.close(handle)
    try:
        if kind == "parquet":
            _write_parquet(rows, temporary)
        else:
            _write_text(rows, temporary, kind)
        follow_umask(Path(temporary))
        os.replace(temporary, file)  # a reader sees the whole file or none
    except UnicodeEncodeError as error:
        name = error.object[max(0, error.start - 60) : error.end + 20].splitlines()[-1]
        raise LabelwiseError(f"a manifest is UTF-8, and this file name is not: {name!r}; rename the file") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def lost_labels(table: LabelTable) -> list[str]:
    """The labels that a column of names cannot keep: no image has them or leaves them open."""
    seen = table.positives_per_label() + table.unknown_per_label()
    return [name for name, count in zip(table.labels, seen.tolist(), strict=True) if not count]


def row_names(table: LabelTable, row: int) -> tuple[list[str], list[str]]:
    """The names of the present and of the unknown labels of one image."""
    values = table.target(row)
    return (
        [table.labels[c] for c in np.flatnonzero(values == PRESENT)],
        [table.labels[c] for c in np.flatnonzero(values == UNKNOWN)],
    )


def relative_place(image: str, folder: Path) -> str:
    """An image's path as a file in `folder` gives it. Behind a link, `..` leads to where the linked folder is."""
    real, is_linked = _real_folder(folder)
    if is_linked:
        image = os.path.join(os.path.realpath(os.path.dirname(image)), os.path.basename(image))
    return os.path.relpath(image, real)


@lru_cache(maxsize=8)
def _real_folder(folder: Path) -> tuple[str, bool]:
    real = os.path.realpath(folder)
    return real, real != os.path.abspath(folder)


def _place(table: LabelTable, row: int, folder: Path) -> dict[str, Any]:
    cells: dict[str, Any] = {"image": relative_place(table.images[row], folder)}
    if table.split_names != ("",):
        cells["split"] = table.splits[row]
    return cells


def _name_rows(table: LabelTable, folder: Path, as_text: bool) -> Iterator[dict[str, Any]]:
    has_unknown = bool(table.unknown_per_label().any())
    plain = as_text and _names_are_plain(table)
    for row in range(len(table)):
        present, unknown = row_names(table, row)
        cells = {"labels": present, "unknown": unknown} if has_unknown else {"labels": present}
        if as_text:
            cells = {key: "|".join(names) if plain else json.dumps(names) for key, names in cells.items()}  # type: ignore[misc]
        yield _place(table, row, folder) | cells


def _names_are_plain(table: LabelTable) -> bool:
    """Whether `a|b` cannot be misread: no name holds the separator, and it occurs (or `hot dog` might be split)."""
    if any("|" in name or name.startswith("[") for name in table.labels):
        return False
    return any(len(names) > 1 for row in range(len(table)) for names in row_names(table, row))


def _column_rows(table: LabelTable, folder: Path) -> Iterator[dict[str, Any]]:
    taken = next((name for name in table.labels if plain_column(name) in _NO_LABELS), None)
    if taken is not None:
        raise LabelwiseError(f"a label is called {taken!r} like a column of the manifest; write names, not columns")
    for row in range(len(table)):
        yield _place(table, row, folder) | dict(zip(table.labels, table.target(row).tolist(), strict=True))


def _write_text(rows: Iterator[dict[str, Any]], path: str, kind: str) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        if kind == "jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        writer = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, list(row), delimiter="\t" if kind == "tsv" else ",", lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)


def _write_parquet(rows: Iterator[dict[str, Any]], path: str) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing_extra("pyarrow", "parquet") from None
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
