"""Open Images V6 image-level labels: human-verified ones, and machine ones above a threshold.

The training file has 60 million lines: it is read line by line into flat arrays, never as a table of strings.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelwise.core.arrays import Columns, Ints, Targets, row_pointers
from labelwise.core.errors import LabelwiseError
from labelwise.data.readers.base import ReaderOptions, read_lines, register_format, unique_names
from labelwise.data.strings import CodedStrings, PackedStrings
from labelwise.data.table import ABSENT, PRESENT, UNKNOWN, LabelTable, canonical_split

_SPLITS = ("train", "validation", "test")
# Where several lines speak of one label of one image, the first of these decides.
_HUMAN_PRESENT, _HUMAN_ABSENT, _MACHINE_PRESENT = range(3)
_VALUE_OF_RANK = np.array([PRESENT, ABSENT, PRESENT], np.int8)


class OpenImagesOptions(ReaderOptions):
    """Options of the format `openimages`.

    Args:
        images_folder: Holds train/, validation/ and test/. Default: the folder itself.
        classes: Which labels. "auto": the trainable ones if their file is there.
        machine_threshold: Machine labels with at least this confidence count as present. None: they are not read.
    """

    images_folder: str | None = None
    classes: Literal["auto", "trainable", "all"] = "auto"
    machine_threshold: float | None = None


@register_format(
    "openimages",
    options=OpenImagesOptions,
    recognise=lambda path: path.is_dir() and bool(_find(path, "*-annotations-human-imagelabels*.csv")),
    looks_like="*-annotations-human-imagelabels.csv and train/<ImageID>.jpg",
    aliases=["open-images"],
    missing_image_fix="Name the folder that holds train/, validation/, test/",
)
def read_openimages(path: Path, options: OpenImagesOptions, labels: Sequence[str] | None) -> LabelTable:
    files = {split: _label_files(path, split, options.machine_threshold is not None) for split in _SPLITS}
    if not any(files.values()):
        raise LabelwiseError(f"{path} has no Open Images labels: looked for *train-annotations-human-imagelabels.csv")
    ids, names = _classes(path, options.classes, [file for group in files.values() for file in group])
    column_of = {id: column for column, id in enumerate(ids)}
    folder = options.images_folder or str(path)
    parts = {split: _read_split(files[split], column_of, options.machine_threshold) for split in _SPLITS}
    return LabelTable(
        names,
        PackedStrings(
            f"{folder}/{split}/{id:016x}.jpg" for split, part in parts.items() for id in part.images.tolist()
        ),
        CodedStrings(canonical_split(split) for split, part in parts.items() for _ in range(len(part.images))),
        row_pointers(np.concatenate([part.lengths for part in parts.values()])),
        np.concatenate([part.columns for part in parts.values()]),
        np.concatenate([part.values for part in parts.values()]),
        fill=UNKNOWN,
    )


def _find(path: Path, pattern: str) -> list[Path]:
    """In the folder or one below it, but not among the nine million files of the image folders."""
    below = sorted(entry for entry in path.iterdir() if entry.is_dir() and entry.name not in _SPLITS)
    return [file for folder in (path, *below) for file in sorted(folder.glob(pattern))]


def _label_files(path: Path, split: str, machine: bool) -> list[Path]:
    """`oidv6-train-annotations-human-imagelabels.csv`; the boxable selection only where the complete file is absent."""
    kinds = ("human", "machine") if machine else ("human",)
    found = [_find(path, f"*{split}-annotations-{kind}-imagelabels*.csv") for kind in kinds]
    return [min(files, key=lambda file: len(file.name)) for files in found if files]


def _classes(path: Path, which: str, files: list[Path]) -> tuple[list[str], tuple[str, ...]]:
    """Ids and names of the labels: in the order of the trainable list, else of the descriptions, else sorted by id."""
    file = next(iter(_find(path, "*class-descriptions.csv")), None)
    described = {} if file is None else read_descriptions(file)
    trainable = next(iter(_find(path, "*classes-trainable.txt")), None)
    if which == "trainable" and trainable is None:
        raise LabelwiseError(f"{path} has no list of trainable classes: looked for *classes-trainable.txt")
    if trainable is not None and which != "all":
        ids = read_lines(trainable)
    elif described:
        ids = list(described)
    else:
        ids = sorted({label for file in files for _, _, label, _ in _lines(file)})
    return ids, unique_names([described.get(id, id) for id in ids], ids)


def read_descriptions(file: Path) -> dict[str, str]:
    """Names of the labels by their ids (/m/...), from a file of class descriptions."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        return {row[0]: row[1] for row in csv.reader(stream) if len(row) == 2 and row[0].startswith("/")}


def _lines(file: Path) -> Iterator[tuple[int, str, str, str]]:
    """(line number, image, label, confidence). No field of these files is quoted, so a split is enough, and fast."""
    with file.open(encoding="utf-8-sig") as stream:
        header = stream.readline().strip().split(",")
        try:
            image, label, confidence = (header.index(name) for name in ("ImageID", "LabelName", "Confidence"))
        except ValueError:
            raise LabelwiseError(
                f"{file} line 1: expected ImageID,Source,LabelName,Confidence, not {','.join(header)!r}"
            ) from None
        for number, line in enumerate(stream, 2):
            fields = line.rstrip().split(",")
            if len(fields) != len(header):
                raise LabelwiseError(f"{file} line {number}: expected {len(header)} fields, not {len(fields)}")
            yield number, fields[image], fields[label], fields[confidence]


class _Part(NamedTuple):
    """The images and labels of one split."""

    images: NDArray[np.uint64]  # [m] ids, sorted
    lengths: Ints  # [m] entries of each image
    columns: Columns  # of the entries
    values: Targets  # of the entries


def _read_split(files: list[Path], column_of: dict[str, int], threshold: float | None) -> _Part:
    image_ids, columns, ranks = array("Q"), array("i"), array("b")
    for file in files:
        is_machine = "-machine-" in file.name
        for number, image, label, confidence in _lines(file):
            column = column_of.get(label)
            if column is None:
                continue  # not among the wanted classes
            try:
                sure = float(confidence)
                if not is_machine and sure not in (0.0, 1.0):
                    raise ValueError(f"a human label has confidence 0 or 1, not {sure}")
                if is_machine and (threshold is None or sure < threshold):
                    continue
                image_ids.append(int(image, 16))
            except (ValueError, OverflowError) as error:
                raise LabelwiseError(f"{file} line {number}: {error}") from None
            columns.append(column)
            ranks.append(_MACHINE_PRESENT if is_machine else _HUMAN_PRESENT if sure else _HUMAN_ABSENT)
    all_ids = np.asarray(image_ids, np.uint64)
    images = np.unique(all_ids)
    # One integer per line that sorts by image, label and rank: sorting it in place needs no other copy of the data.
    keys = np.searchsorted(images, all_ids).astype(np.int64, copy=False)
    keys *= len(column_of)
    keys += np.asarray(columns, np.int32)
    keys *= len(_VALUE_OF_RANK)
    keys += np.asarray(ranks, np.int8)
    keys.sort()
    pairs, rank_of = np.divmod(keys, len(_VALUE_OF_RANK))
    first = np.ones(len(pairs), bool)
    first[1:] = pairs[1:] != pairs[:-1]
    row_of, entry_columns = np.divmod(pairs[first], len(column_of))
    lengths = np.bincount(row_of, minlength=len(images))
    return _Part(images, lengths, entry_columns.astype(np.int32), _VALUE_OF_RANK[rank_of[first]])
