"""Convert a dataset to another format. Images are hard-linked where possible, else copied byte for byte."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from labelwise.core.errors import LabelwiseError, counted, unknown_name
from labelwise.core.files import atomic_write
from labelwise.core.progress import ShowProgress, track
from labelwise.data.images import is_image, read_bytes
from labelwise.data.manifests import lost_label_notes, row_names, write_manifest
from labelwise.data.readers.coco import split_of_file
from labelwise.data.readers.manifest import MANIFEST_KINDS
from labelwise.data.sources import as_table, open_images
from labelwise.data.stream_table import StreamTable, with_labels_read
from labelwise.data.table import PRESENT, SPLITS, LabelTable

if TYPE_CHECKING:
    import pandas

TARGETS = (*MANIFEST_KINDS, "coco", "imagefolder", "webdataset")
SHARD_IMAGES = 1000


def convert(
    data: LabelTable | StreamTable | pandas.DataFrame | str | Path,
    to: str,
    out: str | Path,
    *,
    columns: bool = False,
    unknown: Literal["error", "absent"] = "error",
    progress: ShowProgress = False,
    **reader: Any,
) -> list[str]:
    """Write a dataset in another format.

    Args:
        data: A table, or what `open_data` takes. Shards are unpacked into `out`, with a csv, tsv, jsonl or parquet.
        to: csv, tsv, jsonl, parquet, coco, imagefolder or webdataset.
        out: A new or empty folder.
        columns: Manifests: one column per label, see `write_manifest`.
        unknown: COCO and image folders cannot express that a label is unknown: an error, or written as absent.
        progress: Whether to show it, or a callback.
        **reader: Options of the data's reader, e.g. `image_column="Id"`.

    Returns:
        What the format could not keep, one line each.

    >>> convert("photos.csv", "coco", "photos-coco")  # doctest: +SKIP
    []
    """
    if not isinstance(data, StreamTable):
        data = open_images(data, **reader) if isinstance(data, str | Path) else as_table(data, **reader)
    folder = Path(out)
    if to not in TARGETS:
        raise unknown_name("format to convert to", to, TARGETS)
    if columns and to not in MANIFEST_KINDS:
        raise LabelwiseError(f"one column per label is for {', '.join(MANIFEST_KINDS)}, not for {to}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LabelwiseError(f"{folder} exists and is not an empty folder; name another one", options={"out": ...})
    table = _unpacked(data, to, folder / "images", progress) if isinstance(data, StreamTable) else data
    count = int(table.unknown_per_label().sum())
    if to in ("coco", "imagefolder") and count and unknown == "error":
        raise LabelwiseError(
            f"{table.source}: {to} cannot say that a label is unknown, and {counted(count, 'value is', 'values are')}; "
            "choose another format, or write unknown as absent",
            options={"unknown": "absent"},
        )
    folder.mkdir(parents=True, exist_ok=True)
    if to in MANIFEST_KINDS:
        write_manifest(table, folder / f"labels.{to}", columns=columns)
        return [] if columns else lost_label_notes(table, "; one column per label loses none")
    write = {"coco": _write_coco, "imagefolder": _write_imagefolder, "webdataset": _write_webdataset}[to]
    return write(table, folder, progress)


# ---- images


def _unpacked(table: StreamTable, to: str, folder: Path, progress: ShowProgress) -> LabelTable:
    """The images of shards as files in `folder`, as a table."""
    if to not in MANIFEST_KINDS:
        raise LabelwiseError(
            f"{table.source}: shards are unpacked as {', '.join(MANIFEST_KINDS)}", options={"to": "csv"}
        )
    folder.mkdir(parents=True)
    files = [folder / f"{row:08d}.jpg" for row in range(len(table))]  # whatever it is: the content decides
    for row in track(range(len(table)), "Writing images", shown=progress):
        files[row].write_bytes(table.image(row).data)
    return with_labels_read(table, [str(file) for file in files])


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
    """`annotations/instances_<split>.json` and one folder of images per split, as in COCO."""
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
    notes = [f"the split {split!r} is not read back: its name is not a usual one" for split in lost]
    if empty := int((~table.has_positive()).sum()):
        found = counted(empty, "image has", "images have")
        notes.append(f"{found} no label: open the result with ?empty=keep, or such images are left out")
    return notes


def _write_imagefolder(table: LabelTable, folder: Path, progress: ShowProgress) -> list[str]:
    wrong = np.flatnonzero(table.labels_per_image() != 1)
    if len(wrong):
        raise LabelwiseError(
            f"an image folder holds exactly one label per image, but {len(wrong)} of {len(table)} images have none or "
            f"several, for example {table.images[wrong[0]]!r}; choose another format"
        )
    if table.split_names != ("",) and not set(table.split_names) <= set(SPLITS):
        splits = ", ".join(repr(name) for name in table.split_names)
        raise LabelwiseError(f"an image folder holds the splits train, val and test, or none, not {splits}")
    for name in table.labels:
        if "/" in name or "\\" in name or name.startswith("."):
            raise LabelwiseError(f"label {name!r} cannot be the name of a folder; choose another format")
    names = _file_names(table)
    for row in track(range(len(table)), "Writing images", shown=progress):
        _put(table.images[row], folder / table.splits[row] / table.present(row)[0] / names[row])
    return lost_label_notes(table, keeps_unknown=False)


def _write_webdataset(table: LabelTable, folder: Path, progress: ShowProgress) -> list[str]:
    """`<split>-000000.tar` with SHARD_IMAGES samples each, `labels.txt` for the order of the labels, and `index.json`
    with the number of samples in each shard, as the webdataset package reads it."""
    atomic_write(folder / "labels.txt", "".join(f"{name}\n" for name in table.labels))
    order = [row for split in table.split_names for row in table.rows(split).tolist()]
    written: Counter[str] = Counter()
    samples: Counter[str] = Counter()  # by shard
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
        samples[name] += 1
        present, unknown = row_names(table, row)
        suffix = os.path.splitext(table.images[row])[1].lower()
        suffix = suffix if is_image(f"x{suffix}") else ".jpg"  # how a reader finds the image; the content decides
        _add(shard, f"{row:08d}{suffix}", read_bytes(table.images[row]))
        _add(shard, f"{row:08d}.json", json.dumps({"labels": present, "unknown": unknown}).encode())
    if shard is not None:
        shard.close()
    shards = [{"url": name, "nsamples": count} for name, count in samples.items()]
    atomic_write(folder / "index.json", json.dumps({"wids_version": 1, "shardlist": shards}, indent=1) + "\n")
    return []


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # time stamp 0: the same images give the same shards
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))
