"""PASCAL VOC devkits, by the per-label lists in ImageSets/Main or by the XML annotations: both give the same values."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import numpy as np

from labelwise.core.arrays import Targets
from labelwise.core.errors import LabelwiseError
from labelwise.data.readers.base import ReaderOptions, choose_year, read_lines, register_format
from labelwise.data.table import ABSENT, PRESENT, SPLITS, UNKNOWN, VALUES, LabelTable, natural_key

# fmt: off
VOC_LABELS = [
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
]
# fmt: on


class VocOptions(ReaderOptions):
    """Options of the format `voc`.

    Args:
        year: Needed only if a devkit holds several.
        difficult: The value of a label that occurs only as a difficult object.
        annotations: What is read. "auto": the lists if they are there, because they read faster.
        annotations_folder: The XML files, if they are not in Annotations/.
    """

    year: str | None = None
    difficult: Literal["unknown", "present", "absent"] = "unknown"
    annotations: Literal["auto", "xml", "imagesets"] = "auto"
    annotations_folder: str | None = None


def _recognise(path: Path) -> bool:
    return path.is_dir() and any(
        _is_year_folder(folder) for folder in (path, *path.glob("VOC[0-9]*"), *path.glob("VOCdevkit/VOC[0-9]*"))
    )


@register_format(
    "voc",
    options=VocOptions,
    recognise=_recognise,
    looks_like="VOC2007/ImageSets/Main and VOC2007/JPEGImages",
    aliases=["pascal-voc"],
)
def read_voc(path: Path, options: VocOptions, labels: Sequence[str] | None) -> LabelTable:
    root = _year_folder(path, options.year)
    lists = root / "ImageSets" / "Main"
    annotations = Path(options.annotations_folder) if options.annotations_folder else root / "Annotations"
    split_of = _split_of_image(lists, annotations)
    by_lists = options.annotations == "imagesets" or (
        options.annotations == "auto" and not options.annotations_folder and _has_label_lists(lists)
    )
    difficult = VALUES[options.difficult]
    if by_lists:
        names, targets = _from_lists(lists, split_of, difficult)
    else:
        names, targets = _from_xml(annotations, split_of, difficult)
    images = [str(root / "JPEGImages" / f"{image}.jpg") for image in split_of]
    return LabelTable.from_dense(images, targets, names, splits=list(split_of.values()))


def _year_folder(path: Path, year: str | None) -> Path:
    if _is_year_folder(path):
        return path
    devkit = path / "VOCdevkit" if (path / "VOCdevkit").is_dir() else path
    years = sorted(folder.name.removeprefix("VOC") for folder in devkit.glob("VOC*") if _is_year_folder(folder))
    if not years:
        raise LabelwiseError(
            f"{path} is not a VOC devkit: it holds neither VOC2007/ImageSets/Main nor VOC2007/Annotations"
        )
    return devkit / f"VOC{choose_year(f'voc:{path}', years, year) or years[0]}"


def _is_year_folder(path: Path) -> bool:
    return (path / "ImageSets/Main").is_dir() or ((path / "JPEGImages").is_dir() and (path / "Annotations").is_dir())


def _split_of_image(lists: Path, annotations: Path) -> dict[str, str]:
    """Image -> split, in the order of the official lists; without lists, every annotated image and no split."""
    split_of: dict[str, str] = {}
    # trainval alone is how some re-packed devkits come; where train and val exist it says nothing new.
    for split in (*SPLITS, "trainval"):
        file = lists / f"{split}.txt"
        if file.is_file():
            for line in read_lines(file):
                split_of.setdefault(line.split()[0], split)
    if not split_of:
        split_of = {file.stem: "" for file in sorted(annotations.glob("*.xml"))}
    if not split_of:
        raise LabelwiseError(
            f"no images are listed: looked for {lists}/train.txt, val.txt, test.txt and {annotations}/*.xml"
        )
    return split_of


def _has_label_lists(lists: Path) -> bool:
    return next(lists.glob("*_train*.txt"), next(lists.glob("*_test.txt"), None)) is not None


def _official_order(names: set[str]) -> list[str]:
    """VOC's own 20 labels whenever no other name occurs, so that a subset of VOC has the same columns as all of it."""
    return VOC_LABELS if names <= set(VOC_LABELS) else sorted(names, key=natural_key)


def _from_lists(lists: Path, split_of: dict[str, str], difficult: int) -> tuple[list[str], Targets]:
    """`<label>_<split>.txt`: 1 present, 0 only as difficult, -1 absent. Images that no list mentions stay unknown."""
    files = {
        (match[1], match[2]): file
        for file in sorted(lists.glob("*_*.txt"))
        if (match := re.fullmatch(r"(.+)_(train|val|test|trainval)", file.stem))
    }
    if not files:
        raise LabelwiseError(f"there are no per-label lists like cat_train.txt in {lists}; use annotations=xml")
    labels = _official_order({label for label, _ in files})
    row_of = {image: row for row, image in enumerate(split_of)}
    value_of = {"1": PRESENT, "0": difficult, "-1": ABSENT}
    targets = np.full((len(row_of), len(labels)), UNKNOWN, np.int8)  # [M, N]
    listed = set(split_of.values())
    for (label, split), file in files.items():
        repeats = split == "trainval" and {(label, "train"), (label, "val")} <= files.keys()
        if repeats and "trainval" not in listed:
            continue
        column = labels.index(label)
        for number, line in enumerate(read_lines(file), 1):
            image, value = (*line.split(), "", "")[:2]
            if image not in row_of and split not in listed:
                continue  # of a split whose images are not listed
            if image not in row_of or value not in value_of:
                raise LabelwiseError(
                    f"{file} line {number}: expected an image of {split}.txt and 1, 0 or -1, not {line!r}"
                )
            targets[row_of[image], column] = value_of[value]
    splits = np.array(list(split_of.values()))
    for split in sorted(listed - {"test"}):  # VOC 2012 keeps the labels of test secret
        if (targets[splits == split] == UNKNOWN).all():
            raise LabelwiseError(
                f"no per-label list in {lists} says what is in the images of {split or 'trainval'}.txt; add "
                f"lists like cat_{split or 'trainval'}.txt, or read the XML with annotations=xml"
            )
    return labels, targets


def _from_xml(folder: Path, images: Collection[str], difficult: int) -> tuple[list[str], Targets]:
    if not folder.is_dir():
        raise LabelwiseError(f"the XML folder {folder} is missing; unpack it, or give annotations_folder=")
    rows = [_values_in(folder / f"{image}.xml", difficult) for image in images]
    labels = _official_order({name for values in rows for name in values})
    column = {label: i for i, label in enumerate(labels)}
    targets = np.full((len(images), len(labels)), ABSENT, np.int8)  # [M, N]
    for target, values in zip(targets, rows, strict=True):
        target[[column[name] for name in values]] = list(values.values())
    return labels, targets


def _values_in(file: Path, difficult: int) -> dict[str, int]:
    """A label is present if any object of it is not difficult; if all are, it has the value `difficult`."""
    try:
        root = ElementTree.parse(file).getroot()
    except ElementTree.ParseError as error:
        raise LabelwiseError(f"{file} is not readable XML: {error}") from None
    values: dict[str, int] = {}
    for item in root.findall("object"):  # body parts inside an object have names too and are not objects
        name = (item.findtext("name") or "").strip()
        if not name:
            raise LabelwiseError(f"{file}: an object has no name; correct the annotation")
        if (item.findtext("difficult") or "0").strip() != "1":
            values[name] = PRESENT
        values.setdefault(name, difficult)
    return values
