"""Find the images that an argument names, decode one, or decode many in threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from glob import glob
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.core.errors import LabelwiseError
from labelwise.data.images import BadImageError, Encoded, as_rgb, is_image, load_image
from labelwise.data.inputs import TensorLike, fetch, from_array, from_tensor, is_tensor, is_url

FileKind = Literal["image", "shard", "parquet"]
FoundImage = str | Image.Image | Encoded  # one image: a path or URL, no folder
ImageSource = FoundImage | Path | bytes | NDArray[Any] | TensorLike
ImageSources = ImageSource | Iterable[ImageSource]
_Source = TypeVar("_Source", bound=FoundImage)
_Decoded = TypeVar("_Decoded")

_OPENED_LAZILY = Lock()


def find_images(images: ImageSources) -> Iterator[FoundImage]:
    """List the images that `images` names, in order.

    Args:
        images: A path, a pattern (`photos/*.jpg`), a folder (its image files and those below it, sorted by name), an
            http or https URL, bytes, a PIL image, a NumPy array or torch tensor (one image or a batch), or any mix of
            these in an iterable.

    >>> list(find_images(["b.jpg", Path("a.png")]))
    ['b.jpg', 'a.png']
    """
    if isinstance(images, Image.Image | Encoded):
        yield images
    elif isinstance(images, str | Path):
        yield from _named(str(images))
    elif isinstance(images, bytes | bytearray | memoryview):
        yield Encoded("<bytes>", bytes(images))
    elif isinstance(images, np.ndarray):
        yield from from_array(images)
    elif is_tensor(images):
        yield from from_tensor(cast(TensorLike, images))
    elif isinstance(images, Iterable) and not isinstance(images, Mapping):
        for entry in images:
            yield from find_images(entry)
    else:
        raise LabelwiseError(
            f"a {type(images).__name__} is not an image; give a path, folder, pattern, URL, bytes, PIL image, NumPy "
            "array, torch tensor, or a list of these"
        )


def _named(name: str) -> Iterator[str]:
    if is_url(name):
        yield name
        return
    if name.startswith("~"):
        name = os.path.expanduser(name)
    if os.path.isdir(name):
        found = images_below(name)
    elif ("*" in name or "?" in name) and not os.path.exists(name):
        # Brackets alone make no pattern: "photo[1].jpg" is what browsers call a second download.
        matches = sorted(glob(name, recursive=True))
        if "**" in name:  # it matches the files in its folders itself
            matches = [match for match in matches if not os.path.isdir(match)]
        found = chain.from_iterable(images_below(match) if os.path.isdir(match) else [match] for match in matches)
        found = (path for path in found if is_image(os.path.basename(path)))
    else:
        yield name
        return
    first = next(found, None)
    if first is None:
        what = f"the folder {name!r} holds no images" if os.path.isdir(name) else f"no image matches {name!r}"
        raise LabelwiseError(f"{what}; give another one, or the files themselves")
    yield first
    yield from found


def images_below(folder: str | Path) -> Iterator[str]:
    """The image files in a folder and in those below it, sorted."""
    return (os.path.join(parent, name) for parent, names in walk(folder) for name in filter(is_image, names))


def walk(folder: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Each folder in and below `folder` and the names of its files, sorted. Links are followed, hidden folders not."""
    visited = set[str]()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in visited:  # a link to a folder above would go round for ever
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield parent, sorted(names)


def file_kind(name: str) -> FileKind | None:
    """What a file is taken for by its name; None if it neither is an image nor holds images.

    >>> file_kind("a/0001.tar.gz"), file_kind("a.parquet"), file_kind("a.JPG"), file_kind("notes.txt")
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


def decode(source: FoundImage, min_side: int | None = None) -> Image.Image:
    """The image as upright 8-bit RGB; a URL is downloaded. `min_side`: see `load_image`."""
    if isinstance(source, str) and is_url(source):
        source = fetch(source)
    if not isinstance(source, Image.Image):
        return load_image(source, min_side=min_side)
    try:
        with _OPENED_LAZILY:  # `Image.open` reads the file when it must, and two threads may hold the same image
            source.load()
        return as_rgb(source)
    except OSError as error:
        raise BadImageError(str(getattr(source, "filename", "") or "<image>"), str(error)) from None


def decode_many(
    sources: Iterable[_Source],
    transform: Callable[[Image.Image], _Decoded],
    *,
    threads: int | None = None,
    ahead: int = 64,
) -> Generator[tuple[_Source, _Decoded | BadImageError]]:
    """Decode and transform images in threads, in their order. Pillow decodes without holding Python's lock.

    Args:
        sources: What `find_images` yields. It is consumed as needed, so it may be endless.
        transform: From the decoded image to the result. If it has an attribute `min_side`, that is the shorter side
            it needs (see `load_image`).
        threads: Default: one per core.
        ahead: How many images are decoded before they are asked for, at most.

    Yields:
        Each source with its result, or with the error that says why it cannot be decoded.

    >>> [size for _, size in decode_many([Image.new("RGB", (4, 2))], lambda image: image.size)]
    [(4, 2)]
    """
    min_side: int | None = getattr(transform, "min_side", None)

    def result(source: _Source) -> _Decoded | BadImageError:
        try:
            return transform(decode(source, min_side))
        except BadImageError as error:
            return error

    waiting: deque[tuple[_Source, Future[_Decoded | BadImageError]]] = deque()
    pool = ThreadPoolExecutor(threads or thread_count(), thread_name_prefix="decode")
    try:
        for source in sources:
            waiting.append((source, pool.submit(result, source)))
            if len(waiting) == ahead:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def thread_count() -> int:
    """One thread per core that this process may use; OMP_NUM_THREADS overrides it, as in PyTorch."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
