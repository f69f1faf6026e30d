"""NUS-WIDE: the original text files (81 concepts, 1000 tags), or the zero-shot CSV + JSON of the ML-Decoder authors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from labelwise.core.arrays import Mask
from labelwise.core.errors import LabelwiseError, counted
from labelwise.data.readers import manifest
from labelwise.data.readers.base import ReaderOptions, read_json, read_lines, register_format
from labelwise.data.table import PRESENT, LabelTable

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
    return (path / "ImageList" / "TrainImagelist.txt").is_file() or _zero_shot_classes(path) is not None


@register_format(
    "nus-wide",
    options=NusWideOptions,
    recognise=_recognise,
    looks_like="ImageList/TrainImagelist.txt and Groundtruth/, or data.csv and benchmark_*.json",
    aliases=["nuswide"],
    missing_image_fix="Name the images' folder",
)
def read_nuswide(path: Path, options: NusWideOptions, labels: Sequence[str] | None) -> LabelTable:
    classes = _zero_shot_classes(path)
    table = _from_csv(path, classes, options) if classes else _from_text(path, options)
    return table if options.empty == "keep" else table.select(np.diff(table.indptr) > 0)


# ---- the ML-Decoder authors' data.csv (file, labels, split) and benchmark_81_v0.json


def _zero_shot_classes(path: Path) -> Path | None:
    return next(iter(sorted(path.glob("benchmark_*.json"))), None) if (path / "data.csv").is_file() else None


def _from_csv(path: Path, classes_file: Path, options: NusWideOptions) -> LabelTable:
    columns = manifest.ManifestOptions(root=options.images_folder or str(path), duplicates="merge")
    table = manifest.read_manifest(path / "data.csv", columns, None)  # sorted: the order of their wordvec_array.pth
    classes = read_json(classes_file)
    if not isinstance(classes, dict) or "test class" not in classes:
        raise LabelwiseError(f"{classes_file}: expected the keys 'train class' and 'test class'")
    unseen = set(classes["test class"])
    seen = set(classes.get("train class", set(table.labels) - unseen))
    sets = {
        name: tuple(label for label in table.labels if label in those)
        for name, those in (("seen", seen), ("unseen", unseen))
    }
    return replace(table, label_sets=sets)


# ---- the original text files


def _from_text(path: Path, options: NusWideOptions) -> LabelTable:
    lists = (path / "ConceptsList" / "Concepts81.txt", path / "Concepts81.txt")
    concepts = read_lines(next((file for file in lists if file.is_file()), lists[0]))
    tags = read_lines(path / "NUS_WID_Tags" / "TagList1k.txt") if options.vocabulary != "concepts" else []
    kept_tags = [i for i, tag in enumerate(tags) if options.vocabulary == "tags" or tag not in set(concepts)]
    seen = [tags[i] for i in kept_tags]
    unseen = [] if options.vocabulary == "tags" else concepts
    folders = [path / name for name in _IMAGE_FOLDERS if (path / name).is_dir()]
    folder = options.images_folder or str([*folders, path][0])
    images: list[str] = []
    splits: list[str] = []
    rows: list[dict[int, int]] = []
    for split in ("Train", "Test"):
        names = [line.replace("\\", "/") for line in read_lines(path / "ImageList" / f"{split}Imagelist.txt")]
        images += [f"{folder}/{name}" for name in names]
        splits += [split] * len(names)
        truth = np.zeros((len(names), len(unseen)), bool)  # [m, 81]
        for column, concept in enumerate(unseen):
            file = path / "Groundtruth" / "TrainTestLabels" / f"Labels_{concept}_{split}.txt"
            truth[:, column] = _bits(file, file.read_bytes(), len(names))
        tagged = [np.empty(0, np.int64)] * len(names)
        if tags:  # 324 MB of text: one line at a time
            file = path / "NUS_WID_Tags" / f"{split}_Tags1k.dat"
            with file.open("rb") as lines:
                tagged = [np.flatnonzero(_bits(file, line, len(tags))[kept_tags]) for line in lines if line.strip()]
            if len(tagged) != len(names):
                found = counted(len(tagged), "line")
                raise LabelwiseError(f"{file} has {found} for the {len(names)} images of {split}Imagelist.txt")
        for of_tags, of_concepts in zip(tagged, truth, strict=True):
            columns = [*of_tags.tolist(), *(np.flatnonzero(of_concepts) + len(seen)).tolist()]
            rows.append(dict.fromkeys(columns, PRESENT))
    sets = {"seen": tuple(seen), "unseen": tuple(unseen)} if options.vocabulary == "zero-shot" else {}
    return LabelTable.from_rows(images, rows, seen + unseen, splits=splits, label_sets=sets)


def _bits(file: Path, text: bytes, expected: int) -> Mask:
    """Single digits 0 and 1 between any white space."""
    digits = np.frombuffer(text.translate(None, b" \t\r\n"), np.uint8)
    if len(digits) != expected or not np.isin(digits, (ord("0"), ord("1"))).all():
        raise LabelwiseError(f"{file}: expected {expected} values 0 or 1, found {len(digits)} digits")
    return np.asarray(digits == ord("1"), bool)
