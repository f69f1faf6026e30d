"""NUS-WIDE: the original text files (81 concepts, 1000 tags), or the zero-shot CSV + JSON of the ML-Decoder authors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from labelwise.core.errors import LabelwiseError
from labelwise.data.readers import manifest
from labelwise.data.readers.base import ReaderOptions, read_lines, register_format
from labelwise.data.table import LabelTable

_IMAGE_FOLDERS = ("Flickr", "images", "Images", "image")


class NusWideOptions(ReaderOptions):
    """Options of the format `nus-wide`.

    Args:
        vocabulary: concepts: the 81 of the ground truth. tags: the users' 1,000 tags. zero-shot: the 925 tags that are
            not concepts as "seen", then the concepts as "unseen".
        images_folder: Default: Flickr/, images/ or image/ in the folder, else the folder itself.
        empty: Images without any label.
    """

    vocabulary: Literal["concepts", "tags", "zero-shot"] = "concepts"
    images_folder: str | None = None
    empty: Literal["keep", "drop"] = "keep"


def _recognise(path: Path) -> bool:
    return path.is_dir() and (
        (path / "ImageList" / "TrainImagelist.txt").is_file() or _zero_shot_files(path) is not None
    )


@register_format(
    "nus-wide",
    options=NusWideOptions,
    recognise=_recognise,
    looks_like="ImageList/TrainImagelist.txt and Groundtruth/, or data.csv and benchmark_*.json",
    aliases=["nuswide"],
    missing_image_fix="Give the images' folder with images_folder=, or leave such images out with check_files=drop.",
)
def read_nuswide(path: Path, options: NusWideOptions, labels: Sequence[str] | None) -> LabelTable:
    table = _from_csv(path, options) if _zero_shot_files(path) else _from_text(path, options)
    return table if options.empty == "keep" else table.select(np.diff(table.indptr) > 0)


# ---- the ML-Decoder authors' data.csv (file, labels, split) and benchmark_81_v0.json


def _zero_shot_files(path: Path) -> tuple[Path, Path] | None:
    table, classes = path / "data.csv", next(iter(sorted(path.glob("benchmark_*.json"))), None)
    return (table, classes) if table.is_file() and classes else None


def _from_csv(path: Path, options: NusWideOptions) -> LabelTable:
    files = _zero_shot_files(path)
    assert files is not None
    columns = manifest.ManifestOptions(root=options.images_folder or str(path), duplicates="merge")
    table = manifest.read_manifest(files[0], columns, None)  # labels sorted: the order of their wordvec_array.pth
    try:
        classes = json.loads(files[1].read_text("utf-8"))
    except ValueError as error:
        raise LabelwiseError(f"{files[1]} is not readable JSON: {error}") from None
    if not isinstance(classes, dict) or "test class" not in classes:
        raise LabelwiseError(f"{files[1]}: expected the keys 'train class' and 'test class'")
    unseen = set(classes["test class"])
    seen = set(classes.get("train class", set(table.labels) - unseen))
    sets = {
        "seen": tuple(label for label in table.labels if label in seen),
        "unseen": tuple(label for label in table.labels if label in unseen),
    }
    return replace(table, label_sets=sets)


# ---- the original text files


def _from_text(path: Path, options: NusWideOptions) -> LabelTable:
    concepts = read_lines(_first_of(path, "ConceptsList/Concepts81.txt", "Concepts81.txt"))
    tags = read_lines(path / "NUS_WID_Tags" / "TagList1k.txt") if options.vocabulary != "concepts" else []
    seen_columns = [i for i, tag in enumerate(tags) if options.vocabulary == "tags" or tag not in set(concepts)]
    seen = [tags[i] for i in seen_columns]
    unseen = [] if options.vocabulary == "tags" else concepts
    folder = options.images_folder or next(
        (str(path / name) for name in _IMAGE_FOLDERS if (path / name).is_dir()), str(path)
    )
    images: list[str] = []
    splits: list[str] = []
    rows: list[npt.NDArray[np.int32]] = []  # the columns present in each image
    for split in ("Train", "Test"):
        names = [line.replace("\\", "/") for line in read_lines(path / "ImageList" / f"{split}Imagelist.txt")]
        images += [f"{folder}/{name}" for name in names]
        splits += [split] * len(names)
        truth = np.zeros((len(names), len(unseen)), bool)  # [m, 81]
        for column, concept in enumerate(unseen):
            file = path / "Groundtruth" / "TrainTestLabels" / f"Labels_{concept}_{split}.txt"
            truth[:, column] = _bits(file, _read_bytes(file), len(names))
        tag_file = path / "NUS_WID_Tags" / f"{split}_Tags1k.dat"
        tag_rows = _tag_rows(tag_file, len(tags), seen_columns) if tags else iter(())
        for row in range(len(names)):
            tagged = next(tag_rows, None) if tags else np.empty(0, np.int32)
            if tagged is None:
                raise LabelwiseError(f"{tag_file} has {row} lines for {len(names)} images of {split}Imagelist.txt")
            rows.append(np.concatenate([tagged, np.flatnonzero(truth[row]) + len(seen)]).astype(np.int32))
    columns = np.concatenate(rows)
    return LabelTable(
        (*seen, *unseen),
        images,
        splits,
        np.concatenate([[0], np.cumsum([len(row) for row in rows])]),
        columns,
        np.ones(len(columns), np.int8),
        label_sets={"seen": tuple(seen), "unseen": tuple(unseen)} if options.vocabulary == "zero-shot" else {},
    )


def _first_of(path: Path, *names: str) -> Path:
    return next((path / name for name in names if (path / name).is_file()), path / names[0])


def _read_bytes(file: Path) -> bytes:
    if not file.is_file():
        raise LabelwiseError(f"{file} is missing")
    return file.read_bytes()


def _bits(file: Path, text: bytes, expected: int) -> npt.NDArray[np.bool_]:
    """Single digits 0 and 1 between any white space."""
    digits = np.frombuffer(text.translate(None, b" \t\r\n"), np.uint8)
    if len(digits) != expected or not np.isin(digits, (ord("0"), ord("1"))).all():
        raise LabelwiseError(f"{file}: expected {expected} values 0 or 1, found {len(digits)} digits")
    return np.asarray(digits == ord("1"), bool)


def _tag_rows(file: Path, tags: int, kept: list[int]) -> Iterator[npt.NDArray[np.int64]]:
    """Per image, which of the `kept` tags it has; the files have 1,000 columns and 324 MB, so line by line."""
    if not file.is_file():
        raise LabelwiseError(f"{file} is missing")
    with file.open("rb") as stream:
        for line in stream:
            if line.strip():
                yield np.flatnonzero(_bits(file, line, tags)[kept])
