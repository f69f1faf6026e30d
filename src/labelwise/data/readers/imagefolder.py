"""One folder per class, with or without one folder per split above them; ImageNet's synsets get their names.

An image that lies in several folders, under the same name, has several labels.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from labelwise.core.errors import LabelwiseError, counted
from labelwise.data.decode import images_below
from labelwise.data.images import duplicate_groups, is_image
from labelwise.data.readers.base import ReaderOptions, read_json, read_lines, register_format, unique_names
from labelwise.data.readers.keywords import have_keywords
from labelwise.data.table import PRESENT, SPLITS, LabelTable, canonical_split, natural_key

_NO_CLASS = ("image", "images", "img", "imgs", "jpegimages", "photo", "photos", "picture", "pictures", "data")
_NAME_FILES = ("LOC_synset_mapping.txt", "imagenet_class_index.json")


class ImageFolderOptions(ReaderOptions):
    """Options of the format `imagefolder`.

    Args:
        names_file: From folders to names: LOC_synset_mapping.txt or imagenet_class_index.json. Default: the one in the
            folder or up to three folders above, if any.
    """

    names_file: str | None = None


def _recognise(path: Path) -> bool:
    """An image one or two folders down; no deeper, so that a wrong path does not cost a walk through the whole disk."""
    if not path.is_dir():
        return False
    folders = (folder for top in _class_folders(path) for folder in (top, *_class_folders(top)))
    return any(is_image(entry.name) for folder in folders for entry in folder.iterdir())


@register_format(
    "imagefolder",
    options=ImageFolderOptions,
    recognise=_recognise,
    looks_like="<class>/*.jpg or train/<class>/*.jpg",
    aliases=["imagenet"],
    priority=-3,  # any folder of folders of images looks like this
)
def read_imagefolder(path: Path, options: ImageFolderOptions, labels: Sequence[str] | None) -> LabelTable:
    split_folders = _split_folders(path) or {"": path}
    classes = sorted({folder.name for root in split_folders.values() for folder in _folders(root)}, key=natural_key)
    column_of = {name: column for column, name in enumerate(classes)}
    found = [
        (image, split, {column_of[folder.name]: PRESENT})
        for split, root in split_folders.items()
        for folder in _folders(root)
        for image in images_below(folder)
    ]
    if not found:
        raise LabelwiseError(f"{path} has no images in folders named after their class, like {path}/cat/1.jpg")
    images, splits, rows = zip(*found, strict=True)
    copies = _join_copies(images, splits, rows)
    joined = [row for row, columns in enumerate(rows) if len(columns) > 1]
    notes = []
    if joined:
        lie = counted(len(joined), "image lies", "images lie")
        folders = " and ".join(classes[column] for column in rows[joined[0]])
        example = f"{os.path.basename(images[joined[0]])} is in {folders}"
        notes.append(f"{path}: {lie} in several folders ({example}), read as one image with several labels")
    if repeated := len(copies) - sum(len(rows[row]) - 1 for row in joined):
        notes.append(f"{path}: {counted(repeated, 'copy', 'copies')} of an image in a folder of its label, left out")
    if any(is_image(entry.name) for entry in path.iterdir()):
        notes.append(f"{path}: images that are in no folder of a label are left out")
    if have_keywords(images):
        notes.append(f"{path}: labels are the names of folders; keywords:{path} reads the keywords in the photos")
    table = LabelTable.from_rows(
        images,
        rows,
        _names(path, classes, options.names_file),
        splits=splits,
        single_label=not joined,
        notes=tuple(notes),
    )
    return table.select(np.delete(np.arange(len(images)), copies))


def _join_copies(images: Sequence[str], splits: Sequence[str], rows: Sequence[dict[int, int]]) -> list[int]:
    """Give the first of the files with the same name and content the labels of all; returns the others."""
    by_name: dict[str, list[int]] = defaultdict(list)
    for row, image in enumerate(images):
        by_name[os.path.basename(image)].append(row)
    copies: list[int] = []
    for same in by_name.values():
        for group in duplicate_groups([images[row] for row in same]) if len(same) > 1 else ():
            first_of: dict[str, int] = {}  # split -> row
            for row in (same[member] for member in group):
                first = first_of.setdefault(splits[row], row)
                if first != row:
                    rows[first].update(rows[row])
                    copies.append(row)
            one, *others = first_of.values()
            for other in others:
                if rows[other].keys() != rows[one].keys():
                    raise LabelwiseError(
                        f"{images[one]} and {images[other]} are the same image in two splits, with different labels; "
                        "put the folders of the labels together, without splits: labelwise makes its own"
                    )
    return copies


def _folders(root: Path) -> list[Path]:
    return sorted(
        entry
        for entry in root.iterdir()
        if entry.is_dir() and not entry.name.startswith(".") and entry.name != "__MACOSX"  # what its zip files hold
    )


def _class_folders(root: Path) -> list[Path]:
    return [folder for folder in _folders(root) if folder.name.lower() not in _NO_CLASS]


def _split_folders(path: Path) -> dict[str, Path]:
    """Split -> folder, if all folders are named like splits and hold folders themselves."""
    folders: dict[str, Path] = {}
    for folder in _folders(path):
        other = folders.setdefault(canonical_split(folder.name), folder)
        if other != folder and canonical_split(folder.name) in SPLITS:
            raise LabelwiseError(f"{other} and {folder} are the same split; move one of them away, or join them")
    if not folders or not set(folders) <= set(SPLITS):
        # A class may be called "train", but then it holds images, not folders of images.
        splits = [folder for name, folder in folders.items() if name in SPLITS]
        if any(_holds_images(inner) for folder in splits for inner in _folders(folder)):
            odd = ", ".join(folder.name for name, folder in folders.items() if name not in SPLITS)
            raise LabelwiseError(f"{path} holds splits, {splits[0].name} for one, and also {odd}; move that away")
        return {}
    for split, folder in folders.items():
        # ImageNet's validation images come in no folders; as a class named "val" they would be silently wrong.
        if not _folders(folder) and _holds_images(folder):
            raise LabelwiseError(
                f"the images in {folder} are not in folders named after their class; move them into such folders, "
                f"or move {folder.name} away to go on without {split}"
            )
    return {split: folders[split] for split in SPLITS if split in folders}


def _holds_images(folder: Path) -> bool:
    return next(images_below(folder), None) is not None


def _names(path: Path, classes: list[str], names_file: str | None) -> tuple[str, ...]:
    """ImageNet's names for synset folders, if a file with them is given, or is here or up to three folders above."""
    near = [folder / name for folder in (path, *path.resolve().parents[:3]) for name in _NAME_FILES]
    file = Path(names_file) if names_file else next((file for file in near if file.is_file()), None)
    if file is None:
        return tuple(classes)
    if file.suffix == ".json":
        try:
            name_of = {synset: name.replace("_", " ") for synset, name in read_json(file).values()}
        except (ValueError, AttributeError, TypeError):
            raise LabelwiseError(f'{file} is not like {{"0": ["n01440764", "tench"], ...}}') from None
    else:  # n01440764 tench, Tinca tinca
        pairs = (line.partition(" ") for line in read_lines(file))
        name_of = {synset: words.split(",")[0].strip() for synset, _, words in pairs}
    unnamed = [name for name in classes if name not in name_of]
    if unnamed and names_file:
        raise LabelwiseError(f"{file} has no name for the folder {unnamed[0]!r}")
    # A name file near folders of something else must not rename half of them.
    return tuple(classes) if unnamed else unique_names([name_of[synset] for synset in classes], classes)
