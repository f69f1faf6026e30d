"""The rows of a manifest besides their labels: where the image is, which split, and rows about the same image."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from labelwise.data.table import UNKNOWN, canonical_split
from labelwise.errors import LabelwiseError, unknown_name

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
        raise LabelwiseError(f"{where}: {unknown_name('split', name, allowed)}")
    if allowed is None and not is_usual_split(name):
        problem = unknown_name("split", name, ("train", "val", "test"))
        raise LabelwiseError(f"{where}: {problem}. If it is meant, add splits=train,val,{name}")
    return name


def image_path(cell: Any, folder: str, root: str | None, where: str) -> str:
    """The path of an image: below `root` if given, else relative to the manifest's folder.

    >>> image_path("img/1.jpg", "data", None, ""), image_path("img/1.jpg", "data", "/photos", "")
    ('data/img/1.jpg', '/photos/img/1.jpg')
    """
    if cell is None or cell == "" or str(cell).isspace():
        raise LabelwiseError(f"{where}: the image column is empty")
    if not isinstance(cell, str):
        raise LabelwiseError(f"{where}: the image column holds a {type(cell).__name__}, not a path")
    image = cell.strip()
    if os.sep == "/" and "\\" in image and "/" not in image:
        image = image.replace("\\", "/")  # written on Windows
    if root is None:
        return os.path.join(folder, image)
    if os.path.isabs(image):
        # The images moved: the longest end of the old path that exists below the new root.
        parts = image.split("/")[1:]
        ends = (os.path.join(root, *parts[n:]) for n in range(len(parts)))
        return next((end for end in ends if os.path.exists(end)), os.path.join(root, parts[-1]))
    return os.path.join(root, image)


def without_repeats(
    file: str,
    lines: Sequence[int],
    images: Sequence[str],
    splits: Sequence[str],
    entries: Sequence[dict[int, int]],
    duplicates: str,
) -> list[int]:
    """The rows to keep: the first of each image. Labels of later rows are joined into it if `duplicates` is merge."""
    first_row: dict[str, int] = {}
    for row, image in enumerate(images):
        first = first_row.setdefault(os.path.normpath(image), row)
        if first == row:
            continue
        problem = f"{file} row {lines[row]}: image {image!r}"
        if splits[row] != splits[first]:
            raise LabelwiseError(
                f"{problem} is in split {splits[row]!r}, but in {splits[first]!r} in row {lines[first]}; delete one row"
            )
        if entries[row] != entries[first] and duplicates == "error":
            raise LabelwiseError(
                f"{problem} has other labels than in row {lines[first]}; correct one of them, or join the labels of "
                "all rows of an image with duplicates=merge"
            )
        for column, value in entries[row].items():
            entries[first][column] = max(value, entries[first].get(column, UNKNOWN))
    return list(first_row.values())
