"""What can be predicted (paths, folders, pictures in memory, encoded bytes), and how it becomes upright RGB."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import Literal

from PIL import Image

from labelwise.data.images import BadImageError, Encoded, as_rgb, load_image
from labelwise.data.readers.base import is_image, walk
from labelwise.errors import LabelwiseError

Kind = Literal["image", "shard", "parquet"]
Source = str | Path | Image.Image | Encoded
Sources = Source | Iterable[Source]
Picture = str | Image.Image | Encoded  # one that was found: no folder, no other kind of path

_OPENED_LAZILY = Lock()


def find_images(images: Sources) -> Iterator[Picture]:
    """The pictures that `images` names, in order; a folder gives the image files in it and below, sorted by name."""
    if isinstance(images, Image.Image | Encoded):
        yield images
    elif isinstance(images, str | Path):
        yield from _below(str(images)) if os.path.isdir(images) else [str(images)]
    else:
        for entry in images:
            yield from find_images(entry)


def _below(folder: str) -> Iterator[str]:
    empty = True
    for parent, names in walk(folder):
        for name in filter(is_image, names):
            empty = False
            yield os.path.join(parent, name)
    if empty:
        raise LabelwiseError(f"the folder {folder!r} holds no images; name another one, or the files themselves")


def kind_of(name: str) -> Kind | None:
    """What a file is taken for by its name; None for neither a picture nor something that holds pictures.

    >>> kind_of("a/0001.tar.gz"), kind_of("a.parquet"), kind_of("a.JPG"), kind_of("notes.txt")
    ('shard', 'parquet', 'image', None)
    """
    base = os.path.basename(name)
    if base.startswith("."):
        return None
    if base.lower().endswith((".tar", ".tar.gz", ".tgz")):
        return "shard"
    if base.lower().endswith(".parquet"):
        return "parquet"
    return "image" if is_image(base) else None


def decode(source: Picture, at_least: int | None = None) -> Image.Image:
    if not isinstance(source, Image.Image):
        return load_image(source, at_least=at_least)
    try:
        with _OPENED_LAZILY:  # `Image.open` reads the file when it must, and two threads may hold the same picture
            source.load()
        return as_rgb(source)
    except OSError as error:
        raise BadImageError(str(getattr(source, "filename", "") or "<picture>"), str(error)) from None
