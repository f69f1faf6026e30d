"""COCO instances JSON: a folder in the 2014 or 2017 layout, Roboflow's or fiftyone's, or one file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from labelwise.core.arrays import Targets
from labelwise.core.errors import LabelwiseError
from labelwise.data.readers.base import ReaderOptions, choose_year, read_json, register_format
from labelwise.data.readers.exports import is_export
from labelwise.data.readers.manifest import is_usual_split
from labelwise.data.table import ABSENT, PRESENT, VALUES, LabelTable, canonical_split

# What entries must have, and of which type. Ids are numbers, or texts in files that were not made by COCO.
_NEEDED: dict[str, dict[str, tuple[type, ...]]] = {
    "images": {"id": (int, str), "file_name": (str,)},
    "categories": {"id": (int, str), "name": (str,)},
    "annotations": {"image_id": (int, str), "category_id": (int, str)},
}
# fmt: off
COCO_LABELS = (  # in the order of their ids, which is that of published models' outputs
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven", "toaster", "sink",
    "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)
# fmt: on


_ROBOFLOW = "_annotations.coco.json"


class CocoOptions(ReaderOptions):
    """Options of the format `coco`.

    Args:
        year: Needed only if a folder holds 2014 and 2017.
        images_folder: Where the images are, if not in the usual place.
        empty: Images without any annotation. Published multi-label results leave them out (82,081 of 82,783 for
            training, 40,137 of 40,504 for testing on 2014), so that is the default; "keep" takes them as images without
            a label.
        crowd: The value of a label that occurs only as a crowd region.
    """

    year: str | None = None
    images_folder: str | None = None
    empty: Literal["drop", "keep"] = "drop"
    crowd: Literal["present", "unknown", "absent"] = "present"


def _recognise(path: Path) -> bool:
    return bool(_files_in(path)) if path.is_dir() else path.suffix.lower() == ".json"


def _files_in(root: Path) -> list[Path]:
    """The annotation files of a folder as COCO, Roboflow (one per split, or one) or fiftyone lay it out."""
    for pattern in ("annotations/instances_*.json", f"*/{_ROBOFLOW}", _ROBOFLOW):
        if files := sorted(root.glob(pattern)):
            return files
    fiftyone = root / "labels.json"
    return [fiftyone] if (root / "data").is_dir() and fiftyone.is_file() and not is_export(fiftyone) else []


@register_format(
    "coco",
    options=CocoOptions,
    recognise=_recognise,
    looks_like=f"annotations/instances_*.json, train/{_ROBOFLOW}, or such a .json file",
    missing_image_fix="Name the images' folder",
)
def read_coco(path: Path, options: CocoOptions, labels: Sequence[str] | None) -> LabelTable:
    files = [path] if path.is_file() else _files_of_year(path, options.year)
    categories: dict[int | str, str] = {}
    images: list[str] = []
    splits: list[str] = []
    targets: list[Targets] = []
    listed = 0
    contents = {file: _load(file) for file in files}
    _drop_roots(list(contents.values()))
    for file, content in contents.items():
        listed += len(content["images"])
        in_order = sorted(content["categories"], key=lambda entry: (isinstance(entry["id"], str), entry["id"]))
        found = {entry["id"]: entry["name"] for entry in in_order}
        if len(set(found.values())) < len(content["categories"]):
            raise LabelwiseError(f"{file} lists a category twice; their ids and names must be unique")
        if categories and found != categories:
            raise LabelwiseError(f"{file} has other categories than {files[0]}; read them one by one")
        categories = found
        names, values = _values(file, content, categories, options)
        folder = _images_folder(file, names, options.images_folder)
        images += [os.path.join(folder, name) for name in names]
        splits += [split_of_file(file)] * len(names)
        targets.append(values)
    if not images:
        raise LabelwiseError(f"no image of {path} has an annotation; take them as images without a label: empty=keep")
    table = LabelTable.from_dense(images, np.concatenate(targets), list(categories.values()), splits=splits)
    if len(images) == listed:
        return table
    left_out = f"{listed - len(images):,} of {listed:,} images have no annotation and are left out"
    return replace(table, notes=(f"{path}: {left_out}; empty=keep takes them as images without a label",))


def _drop_roots(contents: Sequence[dict[str, Any]]) -> None:
    """Roboflow lists the project itself as a category, above all others; no image can have it."""
    categories = contents[0]["categories"]
    used = {annotation["category_id"] for content in contents for annotation in content["annotations"]}
    above = {entry.get("supercategory") for entry in categories}
    for entry in categories:
        if entry.get("supercategory") == "none" and entry["name"] in above and entry["id"] not in used:
            for content in contents:
                content["categories"] = [other for other in content["categories"] if other["name"] != entry["name"]]


def _files_of_year(root: Path, year: str | None) -> list[Path]:
    files = _files_in(root)
    years = sorted({match[1] for file in files if (match := re.search(r"(\d{4})$", file.stem))})
    if not files:
        raise LabelwiseError(
            f"{root} is not a COCO folder: looked for annotations/instances_*.json and */{_ROBOFLOW} in it"
        )
    chosen = choose_year(f"coco:{root}", years, year)
    return [file for file in files if file.stem.endswith(chosen)]


def _load(file: Path) -> dict[str, Any]:
    content = read_json(file)
    missing = {"images", "annotations", "categories"} - set(content if isinstance(content, dict) else ())
    if missing:
        raise LabelwiseError(f"{file} is not a COCO instances file: it has no {', '.join(sorted(missing))}")
    for part, needed in _NEEDED.items():
        for number, entry in enumerate(content[part] if isinstance(content[part], list) else [None]):
            for key, kind in needed.items():
                if not isinstance(entry, dict) or type(entry.get(key)) not in kind:
                    names = " or ".join(one.__name__ for one in kind)
                    raise LabelwiseError(f"{file}: entry {number} of {part!r} has no {key!r} that is {names}")
    return content  # type: ignore[no-any-return]


def _values(
    file: Path, content: dict[str, Any], categories: Iterable[int | str], options: CocoOptions
) -> tuple[list[str], Targets]:
    """File names and values [M, N], in the file's image order and the categories' id order."""
    row_of = {image["id"]: row for row, image in enumerate(content["images"])}
    if len(row_of) < len(content["images"]):
        raise LabelwiseError(f"{file} lists an image id twice; ids must be unique")
    column_of = {category: column for column, category in enumerate(categories)}
    values = np.full((len(row_of), len(column_of)), ABSENT, np.int8)
    annotated = np.zeros(len(row_of), bool)
    # Crowd regions first: a single object of the same label then overrules what a crowd alone would say.
    for annotation in sorted(content["annotations"], key=lambda entry: not entry.get("iscrowd")):
        try:
            row, column = row_of[annotation["image_id"]], column_of[annotation["category_id"]]
        except KeyError as error:
            raise LabelwiseError(
                f"{file}: annotation {annotation.get('id')} refers to image or category {error}, which is not listed"
            ) from None
        values[row, column] = VALUES[options.crowd] if annotation.get("iscrowd") else PRESENT
        annotated[row] = True
    kept = annotated if options.empty == "drop" else np.ones_like(annotated)
    names = [image["file_name"] for image, keep in zip(content["images"], kept, strict=True) if keep]
    return names, values[kept]


def _images_folder(file: Path, names: list[str], given: str | None) -> str:
    """The first usual place that holds the first image."""
    if given:
        return given
    root = file.parent.parent if file.parent.name == "annotations" else file.parent
    part = file.stem.removeprefix("instances_")  # train2017
    split = re.sub(r"\d{4}$", "", part)
    folders = [root / part, root / "images" / part, root / split, root / "images" / split, root / "images"]
    folders += [root / "data", root]
    # If none does, the first: it is checked with all the others, which says what is missing.
    return str(next((folder for folder in folders if names and (folder / names[0]).exists()), folders[0]))


def split_of_file(file: Path) -> str:
    """The split that a file is named after; none if it is named otherwise.

    >>> [split_of_file(Path(f"{name}.json")) for name in ("instances_val2017", "instances_test2", "my-train", "latest")]
    ['val', 'test2', 'train', '']
    >>> split_of_file(Path("train_annotations.json")), split_of_file(Path("valid/_annotations.coco.json"))
    ('', 'val')
    """
    if file.name == _ROBOFLOW:
        split = canonical_split(file.parent.name)
        return split if is_usual_split(split) and not split.isdecimal() else ""
    stem = re.sub(r"(?<=[a-z])\d{4}$", "", file.stem.lower())
    part = stem.removeprefix("instances_")
    if part != stem and is_usual_split(canonical_split(part)) and not part.isdecimal():
        return canonical_split(part)
    match = re.search(r"(?:^|[^a-z])(trainval|train|val|test|valid|validation|training|testing)$", stem)
    return canonical_split(match[1]) if match else ""
