"""Write a table in another format. Pictures are copied byte by byte, or hard-linked where that is possible."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from labelwise.core.errors import LabelwiseError, missing_extra, shortened, unknown_name
from labelwise.core.files import atomic_write
from labelwise.core.progress import ShowProgress, track
from labelwise.data.images import is_image
from labelwise.data.readers.coco import split_of_file
from labelwise.data.readers.manifest import LABEL_COLUMNS, SPLIT_COLUMNS, plain_column
from labelwise.data.table import PRESENT, UNKNOWN, LabelTable

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
    try:
        if kind == "parquet":
            atomic_write(file, lambda draft: _write_parquet(rows, draft))
        else:
            atomic_write(file, lambda draft: _write_text(rows, draft, kind))
    except UnicodeEncodeError as error:
        name = error.object[max(0, error.start - 60) : error.end + 20].splitlines()[-1]
        raise LabelwiseError(f"a manifest is UTF-8, and this file name is not: {name!r}; rename the file") from None


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


def _write_text(rows: Iterator[dict[str, Any]], path: Path, kind: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        if kind == "jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        writer = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, list(row), delimiter="\t" if kind == "tsv" else ",", lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)


def _write_parquet(rows: Iterator[dict[str, Any]], path: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing_extra("pyarrow", "parquet") from None
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


TARGETS = (*MANIFEST_KINDS, "coco", "imagefolder", "webdataset")
SHARD_IMAGES = 1000


def convert(
    table: LabelTable,
    to: str,
    out: str | Path,
    *,
    columns: bool = False,
    unknown: Literal["error", "absent"] = "error",
    progress: ShowProgress = False,
) -> list[str]:
    """Write `table` into the folder `out`, which must not exist or be empty. Returns what the format could not keep.

    COCO and image folders know no "unknown": that is an error, or with `unknown="absent"` written as absent.
    `columns`: see `write_manifest`.
    """
    folder = Path(out)
    if to not in TARGETS:
        raise unknown_name("format to convert to", to, TARGETS)
    if columns and to not in MANIFEST_KINDS:
        raise LabelwiseError(f"one column per label is for {', '.join(MANIFEST_KINDS)}, not for {to}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LabelwiseError(f"{folder} exists and is not an empty folder; name another one with --out")
    if to in ("coco", "imagefolder"):
        table = _without_unknown(table, to, unknown)
    folder.mkdir(parents=True, exist_ok=True)
    if to in MANIFEST_KINDS:
        write_manifest(table, folder / f"labels.{to}", columns=columns)
        return [] if columns else lost_label_notes(table, "; keep them with --columns")
    if to == "coco":
        return _write_coco(table, folder, progress)
    if to == "imagefolder":
        return _write_imagefolder(table, folder, progress)
    return _write_webdataset(table, folder, progress)


def lost_label_notes(table: LabelTable, fix: str = "") -> list[str]:
    lost = lost_labels(table)
    return [f"{len(lost)} labels that no image has are gone ({shortened(lost)}){fix}"] if lost else []


def _without_unknown(table: LabelTable, to: str, unknown: Literal["error", "absent"]) -> LabelTable:
    count = int(table.unknown_per_label().sum())
    if not count:
        return table
    if unknown == "error":
        raise LabelwiseError(
            f"{to} cannot say that a label is unknown, and {count} values of {table.source} are; choose another "
            "format, or write them as absent with --unknown absent"
        )
    targets = np.where(table.targets() == UNKNOWN, 0, table.targets())
    return LabelTable.from_dense(table.images, targets, table.labels, splits=table.splits, source=table.source)


# ---- pictures


def _file_names(table: LabelTable) -> list[str]:
    """One name per image, its own wherever no other image has the same."""
    names = [os.path.basename(image) for image in table.images]
    count = Counter(name.lower() for name in names)
    return [name if count[name.lower()] == 1 else f"{row:08d}_{name}" for row, name in enumerate(names)]


def _put(image: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(os.path.realpath(image), target)
    except OSError:  # another disk, or a file system without hard links
        shutil.copyfile(image, target)


# ---- formats


def _write_coco(table: LabelTable, folder: Path, progress: ShowProgress) -> list[str]:
    """`annotations/instances_<split>.json` and one folder of photos per split, as COCO has them."""
    (folder / "annotations").mkdir()
    categories = [{"id": column + 1, "name": name} for column, name in enumerate(table.labels)]
    names = _file_names(table)
    contents: dict[str, dict[str, list[dict[str, Any]]]] = {
        split: {"images": [], "annotations": [], "categories": categories} for split in table.split_names
    }
    number = 0
    for row in track(range(len(table)), "Writing images", shown=progress):
        split = table.splits[row]
        content = contents[split]
        content["images"].append({"id": row + 1, "file_name": names[row]})
        for column in np.flatnonzero(table.target(row) == PRESENT).tolist():
            number += 1
            content["annotations"].append({"id": number, "image_id": row + 1, "category_id": column + 1, "iscrowd": 0})
        _put(table.images[row], folder / (split or "images") / names[row])
    for split, content in contents.items():
        atomic_write(folder / "annotations" / f"instances_{split or 'all'}.json", json.dumps(content))
    lost = [split for split in contents if split_of_file(Path(f"instances_{split or 'all'}.json")) != split]
    notes = [f"the split {split!r} is not read back: its name is no usual one" for split in lost]
    empty = sum(not table.present(row) for row in range(len(table)))
    if empty:
        notes.append(f"{empty} images have no label: open the result with ?empty=keep, or they are left out")
    return notes


def _write_imagefolder(table: LabelTable, folder: Path, progress: ShowProgress) -> list[str]:
    present = [table.present(row) for row in range(len(table))]
    wrong = [row for row, names in enumerate(present) if len(names) != 1]
    if wrong:
        raise LabelwiseError(
            f"an image folder holds exactly one label per image, but {len(wrong)} of {len(table)} images have none or "
            f"several, for example {table.images[wrong[0]]!r}; choose another format"
        )
    if table.split_names != ("",) and not set(table.split_names) <= {"train", "val", "test"}:
        splits = ", ".join(repr(name) for name in table.split_names)
        raise LabelwiseError(f"an image folder holds the splits train, val and test, or none, not {splits}")
    for name in table.labels:
        if "/" in name or "\\" in name or name.startswith("."):
            raise LabelwiseError(f"label {name!r} cannot be the name of a folder; choose another format")
    names = _file_names(table)
    for row in track(range(len(table)), "Writing images", shown=progress):
        _put(table.images[row], folder / table.splits[row] / present[row][0] / names[row])
    return lost_label_notes(table)


def _write_webdataset(table: LabelTable, folder: Path, progress: ShowProgress) -> list[str]:
    """`<split>-000000.tar` with SHARD_IMAGES samples each, and `labels.txt` for the order of the labels."""
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in table.labels), encoding="utf-8")
    order = [row for split in table.split_names for row in table.rows(split).tolist()]
    written: Counter[str] = Counter()
    shard: tarfile.TarFile | None = None
    for row in track(order, "Writing shards", shown=progress):
        split = table.splits[row]
        if written[split] % SHARD_IMAGES == 0:
            if shard is not None:
                shard.close()
            name = f"{split or 'data'}-{written[split] // SHARD_IMAGES:06d}.tar"
            shard = tarfile.open(folder / name, "w")  # noqa: SIM115  # stays open over many rows
        assert shard is not None
        written[split] += 1
        present, unknown = row_names(table, row)
        suffix = os.path.splitext(table.images[row])[1].lower()
        suffix = suffix if is_image(f"x{suffix}") else ".jpg"  # how a reader knows the picture; the content decides
        _add(shard, f"{row:08d}{suffix}", Path(table.images[row]).read_bytes())
        _add(shard, f"{row:08d}.json", json.dumps({"labels": present, "unknown": unknown}).encode())
    if shard is not None:
        shard.close()
    return []


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # time stamp 0: the same images give the same shards
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))
