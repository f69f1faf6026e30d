"""Find the images that an argument names (files, URLs, arrays, tensors), decode one, or decode many in threads."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from glob import glob
from io import TextIOBase
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.core.arrays import Array, to_numpy
from labelwise.core.environment import thread_count
from labelwise.core.errors import LabelwiseError, described
from labelwise.data.images import BadImage, BadImageError, Encoded, OnBadImage, as_rgb, is_image, load_image
from labelwise.data.preprocessing import InputTransform, Preprocessing

if TYPE_CHECKING:
    from labelwise.data.stream_table import AnyTable

MAX_URL_BYTES = 64 << 20
URL_SECONDS = 30.0  # for the whole download
_CHUNK = 1 << 16
_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA


@runtime_checkable
class TensorLike(Protocol):
    """A torch tensor; torch itself is not imported."""

    def detach(self) -> Any: ...  # a file has it, too
    def cpu(self) -> Any: ...
    def numpy(self) -> Any: ...


@runtime_checkable
class BinaryFile(Protocol):
    """An open file, `io.BytesIO`, an upload."""

    def read(self) -> bytes: ...


FileKind = Literal["image", "shard", "parquet"]
FoundImage = str | Image.Image | Encoded  # one image: a path or URL, no folder
ImageSource = FoundImage | os.PathLike[str] | bytes | BinaryFile | Array | TensorLike
ImageSources = ImageSource | Iterable[ImageSource]  # or a pandas or polars frame, an iterable to type checkers
_Source = TypeVar("_Source", bound=FoundImage)
_Decoded = TypeVar("_Decoded")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_OPENED_LAZILY = Lock()


def find_images(images: ImageSources) -> Iterator[FoundImage]:
    """List the images that `images` names, in order.

    Args:
        images: A path, a pattern (`photos/*.jpg`), a folder (its image files and those below it, sorted by name), an
            http or https URL, bytes, an open file, a PIL image, a NumPy array or torch tensor (one image or a batch),
            any mix of these in an iterable, or a pandas or polars frame with a column of them.

    >>> list(find_images(["b.jpg", Path("a.png")]))
    ['b.jpg', 'a.png']
    """
    if isinstance(images, Image.Image | Encoded):
        yield images
    elif isinstance(images, str | os.PathLike):
        yield from _named(os.fspath(images))
    elif isinstance(images, bytes | bytearray | memoryview):
        yield Encoded("<bytes>", bytes(images))
    elif isinstance(images, BinaryFile):
        name = str(getattr(images, "name", "<file>"))
        if isinstance(images, TextIOBase):
            raise LabelwiseError(f"{name} is open as text; open images with mode 'rb'")
        yield Encoded(name, images.read())
    elif isinstance(images, np.ndarray) and not (images.ndim == 1 and images.dtype.kind in "OU"):  # a list of paths
        yield from from_array(images)
    elif isinstance(images, TensorLike):  # [C, H, W], [H, W] or [B, C, H, W]
        values = to_numpy(images)
        channels_first = values.ndim == 4 or (values.ndim == 3 and values.shape[0] in _CHANNELS)
        yield from from_array(np.moveaxis(values, -3, -1) if channels_first else values)
    elif hasattr(images, "columns"):
        yield from find_images(_image_column(images))
    elif isinstance(images, Iterable) and not isinstance(images, Mapping):
        for entry in images:
            yield from find_images(entry)
    else:
        raise LabelwiseError(
            f"{described(images)} is not an image; give a path, folder, pattern, URL, bytes, open file, PIL image, "
            "NumPy array, torch tensor, a list of these, or a table with a column of paths"
        )


def _image_column(frame: Any) -> list[Any]:
    """The first column of a pandas or polars frame that holds paths, addresses or contents of images."""
    for column in frame.columns:
        values = list(frame[column])
        first = next((value for value in values if isinstance(value, str | os.PathLike | bytes | Image.Image)), None)
        if isinstance(first, str | os.PathLike):
            name = os.fspath(first)
            if not (is_image(os.path.basename(name)) or is_url(name) or os.path.isfile(name)):
                continue
        if first is not None:
            return values
    raise LabelwiseError(
        f"no column of the table ({', '.join(map(str, frame.columns))}) holds images or their paths; give the column "
        "itself, e.g. frame['path']"
    )


def _named(name: str) -> Iterator[str]:
    name = os.path.expanduser(name)
    if os.path.isdir(name):
        found = images_below(name)
    elif ("*" in name or "?" in name) and not is_url(name) and not os.path.exists(name):
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
        if os.path.isfile(os.path.join(name, "model", "config.json")):
            raise LabelwiseError(f"{name!r} is a model, not a folder of images; exchange the two arguments")
        what = f"the folder {name!r} holds no images" if os.path.isdir(name) else f"no image matches {name!r}"
        raise LabelwiseError(f"{what}; give another one, or the files themselves")
    yield first
    yield from found


def from_array(values: Array) -> Iterator[Image.Image]:
    """The images of an array [H, W], [H, W, C], [C, H, W] or a batch of these: 8 bits, or floats between 0 and 1.

    >>> [image] = from_array(np.full((2, 4, 3), 0.5))
    >>> image.size, image.getpixel((0, 0))
    ((4, 2), (128, 128, 128))
    """
    if values.ndim == 4:
        for image in values:
            yield from from_array(image)
        return
    if values.ndim == 3 and values.shape[2] not in _CHANNELS and values.shape[0] in _CHANNELS:
        values = np.moveaxis(values, 0, -1)
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in _CHANNELS) or not values.size:
        raise LabelwiseError(
            f"an array of shape {list(values.shape)} is not an image; give [height, width], [height, width, 3] or "
            "[3, height, width]"
        )
    pixels = _to_bytes(values)
    yield Image.fromarray(pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)


def _to_bytes(values: Array) -> NDArray[np.uint8]:
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    white = 1 if values.dtype.kind in "fb" else 65535 if values.dtype == np.uint16 else 255
    if values.dtype.kind not in "fbiu":
        raise LabelwiseError(f"an array of {values.dtype} is not an image; give 8-bit values, or floats from 0 to 1")
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= white):  # NaN included
        raise LabelwiseError(
            f"an image array of {values.dtype} must lie between 0 and {white}, this one has values from {low:g} to "
            f"{high:g}; give the image before it is normalised"
        )
    return np.ascontiguousarray((values.astype(np.float64) * (255 / white)).round().astype(np.uint8))


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


def is_url(name: str) -> bool:
    """
    >>> is_url("https://example.org/a.jpg"), is_url("s3://bucket/a.jpg"), is_url("a.jpg")
    (True, False, False)
    """
    return name.lower().startswith(("http://", "https://"))


def fetch(url: str, *, max_bytes: int = MAX_URL_BYTES, seconds: float = URL_SECONDS) -> Encoded:
    """Download an image. Whatever goes wrong is a `BadImageError`, so a bad address can be skipped like a bad file.

    Args:
        url: An http or https address.
        max_bytes: Larger files are refused.
        seconds: For the whole download.
    """
    end = time.monotonic() + seconds
    data = bytearray()
    # Not above: with all that it imports it takes longer than an image.
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(url, headers={"User-Agent": "labelwise"}), timeout=seconds) as answer:
            while chunk := answer.read(_CHUNK):
                data += chunk
                if len(data) > max_bytes:
                    raise BadImageError(url, f"more than {max_bytes / 2**20:.0f} MB")
                if time.monotonic() > end:
                    raise TimeoutError
    except HTTPError as error:
        raise BadImageError(url, f"the server answers {error.code} {error.reason}") from None
    except TimeoutError:
        raise BadImageError(url, f"not downloaded within {seconds:g} s") from None
    except (URLError, OSError, ValueError) as error:  # ValueError: not an address
        raise BadImageError(url, f"cannot be downloaded: {getattr(error, 'reason', error)}") from None
    return Encoded(url, bytes(data))


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
    min_side: int | None = None,
    threads: int | None = None,
    ahead: int = 64,
) -> Generator[tuple[_Source, _Decoded | BadImageError]]:
    """Decode and transform images in threads, in their order. Pillow decodes without holding Python's lock.

    Args:
        sources: What `find_images` yields. It is consumed as needed, so it may be endless.
        transform: From the decoded image to the result.
        min_side: The shorter side that it needs (see `load_image`). Default: its attribute `min_side`, if it has one.
        threads: Default: one per core.
        ahead: How many images are decoded before they are asked for, at most.

    Returns:
        Each source with its result, or with the error that says why it cannot be decoded.

    >>> [size for _, size in decode_many([Image.new("RGB", (4, 2))], lambda image: image.size)]
    [(4, 2)]
    """
    min_side = min_side or getattr(transform, "min_side", None)

    def result(source: _Source) -> tuple[_Source, _Decoded | BadImageError]:
        try:
            return source, transform(decode(source, min_side))
        except BadImageError as error:
            return source, error

    return read_ahead(result, sources, threads=threads or thread_count(), ahead=ahead)


def read_ahead(
    read: Callable[[_Item], _Result], items: Iterable[_Item], *, threads: int, ahead: int
) -> Generator[_Result]:
    """`map` in threads, in order, up to `ahead` items before they are asked for.

    >>> list(read_ahead(str.upper, "abc", threads=2, ahead=2))
    ['A', 'B', 'C']
    """
    waiting: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="read") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(read, item))
                if len(waiting) == ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


@dataclass
class TableImages:
    """The images of a table as inputs of a model, decoded in threads ahead of it.

    Args:
        table: The images.
        preprocessing: From images to inputs.
        on_bad_image: Whether an image that cannot be decoded is an error, or is noted in `bad_images` and skipped.
        threads: That decode; 0: one per core.
    """

    table: AnyTable
    preprocessing: Preprocessing
    on_bad_image: OnBadImage = "error"
    threads: int = 0

    def __post_init__(self) -> None:
        self.bad_images: dict[int, BadImage] = {}  # by row

    def batches(
        self, size: int, rows: Iterable[int] | None = None, read: Callable[[int], FoundImage] | None = None
    ) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
        """Up to `size` rows and their inputs [B, 3, H, W]. `read` opens the image of a row."""
        decoded = self._decoded(range(len(self.table)) if rows is None else rows, read, ahead=2 * size)
        while batch := list(islice(decoded, size)):
            yield [row for row, _ in batch], np.stack([values for _, values in batch])

    def note_bad_image(self, row: int, error: BadImageError) -> None:
        if self.on_bad_image == "error":
            raise error.skippable(self.table.where(row))
        self.bad_images[row] = BadImage(row, error.path, error.reason)

    def _decoded(
        self, rows: Iterable[int], read: Callable[[int], FoundImage] | None, ahead: int
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        under_way: deque[int] = deque()

        def sources() -> Iterator[FoundImage]:
            for row in rows:
                try:
                    source = read(row) if read else self.table.image(row)
                except BadImageError as error:
                    self.note_bad_image(row, error)
                    continue
                under_way.append(row)
                yield source

        for _, found in decode_many(sources(), InputTransform(self.preprocessing), threads=self.threads, ahead=ahead):
            row = under_way.popleft()
            if isinstance(found, BadImageError):
                self.note_bad_image(row, found)
            else:
                yield row, found
