"""Decode any image to upright 8-bit RGB, or say in one line why it cannot be decoded."""

from __future__ import annotations

import errno
import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from labelwise.core.errors import LabelwiseError, missing_extra, one_line
from labelwise.core.files import sha256
from labelwise.core.progress import ShowProgress, track
from labelwise.data import jpeg

# Image formats only: Pillow would also open PostScript, by running Ghostscript on an untrusted file.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
    | {".avif", ".heic", ".heif", ".hif", ".ppm", ".jp2"}
)
_JPEG_OR_PNG = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")  # how such files begin
ORIENTATION_TAG = 0x0112
# EXIF orientation -> what undoes it (EXIF 2.3, tag 274).
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

OnBadImage = Literal["error", "skip"]
Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels; right and bottom are exclusive
_NO_FILE = "no such file"
_NOT_REGULAR = "not a regular file"
MAX_FILE_BYTES = 512 << 20  # the largest image that Pillow decodes, uncompressed; a file with holes may claim more
_FILE_FAULTS = {errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO}
MAX_SIDE = 65_535  # pixels, the most of a JPEG; resizing 1 x 40,000,000 would take gigabytes
_STRIP_PIXELS = 1 << 18  # of an image of more than 8 bits, converted at a time


class BadImageError(LabelwiseError):
    """An image that cannot be decoded: `path` as it was given and a short `reason`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"image {path!r} cannot be decoded ({reason})")
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[type[BadImageError], tuple[str, str]]:
        return type(self), (self.path, self.reason)

    def skippable(self, where: str = "") -> LabelwiseError:
        """What stops a job that could go on without the image; `where` is the row of the table."""
        message = f"{where}: {self.message}" if where else self.message
        return LabelwiseError(f"{message}; fix it, or skip bad images", options={"on_bad_image": "skip"})


class TooManyPixelsError(BadImageError):
    """An image whose header states more pixels than the caller allows, or a side longer than `MAX_SIDE`."""


class Encoded(NamedTuple):
    """The content of an image file, not yet decoded, and a name for messages."""

    name: str
    data: bytes


class BadImage(NamedTuple):
    """A row of a table whose image is missing or cannot be decoded."""

    row: int
    path: str
    reason: str

    @classmethod
    def missing(cls, row: int, path: str) -> BadImage:
        return cls(row, path, _NO_FILE)

    @property
    def is_missing(self) -> bool:
        return self.reason == _NO_FILE


def is_image(name: str) -> bool:
    """Whether a file is called like an image. Hidden files are not.

    >>> is_image("a.JPG"), is_image("notes.txt"), is_image("._a.jpg")
    (True, False, False)
    """
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def load_image(
    source: str | Path | bytes | Encoded, *, min_side: int | None = None, max_pixels: int | None = None
) -> Image.Image:
    """Decode an image to upright 8-bit RGB; of an animation, the first frame; transparency becomes white.

    Args:
        source: A path, the bytes of a file, or `Encoded` bytes with a name.
        min_side: The shorter side that the caller needs. A larger JPEG is then decoded at 1/2, 1/4 or 1/8 of its size,
            several times faster, but never smaller than that.
        max_pixels: A larger image is refused by its header, before anything is decoded.

    >>> data = BytesIO()
    >>> Image.new("LA", (4, 2), (0, 51)).save(data, "PNG")  # black, one fifth opaque
    >>> load_image(data.getvalue()).getpixel((0, 0))
    (204, 204, 204)
    """
    name, data = read_image(source)
    if not data:
        raise BadImageError(name, "empty file")
    if is_heic(data) and (missing := missing_decoder()):
        raise BadImageError(name, f"HEIC: {missing}")
    if excess := jpeg.excess(data):
        raise BadImageError(name, excess)
    try:
        with open_image(data) as image:
            if max_pixels is not None and image.width * image.height > max_pixels:
                raise TooManyPixelsError(name, f"{image.width} x {image.height} pixels, {max_pixels:,} are allowed")
            if max(image.size) > MAX_SIDE:
                raise TooManyPixelsError(name, f"{image.width} x {image.height} pixels, a side may have {MAX_SIDE:,}")
            if min_side:
                image.draft(None, (min_side, min_side))  # does nothing unless it is a JPEG
            image.load()
            return as_rgb(image)
    except UnidentifiedImageError:
        raise BadImageError(name, "not an image of a known format") from None
    except Image.DecompressionBombError:
        raise TooManyPixelsError(name, "more pixels than Pillow's safety limit") from None
    except BadImageError:
        raise
    except Exception as error:  # the decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error, ...
        text = one_line(error)
        truncated = isinstance(error, EOFError) or "truncated" in text.lower()
        raise BadImageError(name, "truncated file" if truncated else text or type(error).__name__) from error


def open_image(data: bytes) -> ImageFile:
    """Read the header of an image file: its pixels are not decoded yet. Raises what Pillow raises."""
    if not data.startswith(_JPEG_OR_PNG):
        Image.init()  # all plugins of Pillow, which takes as long as to open a network; but only once
    Image.preinit()
    return Image.open(BytesIO(data), formats=[name for name in FORMATS if name in Image.OPEN])


def read_image(source: str | Path | bytes | Encoded) -> Encoded:
    """The content of an image file, not yet decoded. Raises BadImageError if it cannot be read."""
    if isinstance(source, Encoded):
        return source
    if isinstance(source, bytes):
        return Encoded("<bytes>", source)
    name = str(source)
    try:
        return Encoded(name, read_bytes(name))
    except (OSError, ValueError) as error:
        raise BadImageError(name, fault_of_file(error) or getattr(error, "strerror", None) or one_line(error)) from None


def read_bytes(path: str | Path) -> bytes:
    """The content of a regular file. Anything else is refused: reading a pipe would wait for ever."""
    # Opening a pipe waits, too, unless told not to; a look at the name first would leave time to replace the file.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        about = os.fstat(descriptor)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, _NOT_REGULAR, str(path))
        if about.st_size > MAX_FILE_BYTES:
            raise OSError(errno.EINVAL, too_large(about.st_size), str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def require_regular(path: str) -> None:
    """For files that are opened by others: at an address, missing, or a regular file."""
    if "://" not in path and os.path.exists(path) and not os.path.isfile(path):
        raise LabelwiseError(f"{path!r} is {_NOT_REGULAR}")


def too_large(size: int) -> str:
    """Why a file of so many bytes is not read.

    >>> too_large(30 << 30)
    '30,720 MB; an image file may have 512 MB'
    """
    return f"{size >> 20:,} MB; an image file may have {MAX_FILE_BYTES >> 20} MB"


def fault_of_file(error: Exception) -> str | None:
    """Why this one file cannot be read; None if the next one may fail as well, as on a failing disk or network.

    >>> fault_of_file(FileNotFoundError()), fault_of_file(OSError(errno.EIO, "Input/output error"))
    ('no such file', None)
    """
    if isinstance(error, FileNotFoundError):
        return _NO_FILE
    if isinstance(error, IsADirectoryError):
        return "a folder, not a file"
    if isinstance(error, ValueError) and "null byte" in str(error):
        return "its name holds a NUL character"
    return error.strerror if isinstance(error, OSError) and error.errno in _FILE_FAULTS else None


def as_rgb(image: Image.Image) -> Image.Image:
    """Turn an opened image upright and convert it to 8-bit RGB."""
    kind, orientation = image.format, None
    with suppress(Exception):  # a damaged EXIF block must not cost us an image whose pixels are fine
        orientation = image.getexif().get(ORIENTATION_TAG)
    if orientation in UPRIGHT:
        image = image.transpose(UPRIGHT[orientation])
    if image.mode == "F" or image.mode.startswith("I"):
        return _from_deep(image)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    if image.mode == "CMYK" and kind == "JPEG" and "adobe" not in image.info:
        # Adobe's JPEGs store inverted ink and say so in a marker; Pillow assumes that of every CMYK JPEG.
        image = ImageChops.invert(image)
    return image.convert("RGB")


def _from_deep(image: Image.Image) -> Image.Image:
    """Grayscale of more than 8 bits. Pillow's own conversion clips it at 255, which turns the image white."""
    values = np.asarray(image)  # [H, W]
    largest = max(float(_clean(strip).max()) for strip in _strips(values))
    # Integers are 16-bit unless they say otherwise; floats are written as 0..1, 0..255 or 0..65535.
    scales = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
    white = next((scale for scale in scales if largest <= scale), largest)
    gray = np.concatenate(
        [np.clip(_clean(strip) / white * 255, 0, 255).round().astype(np.uint8) for strip in _strips(values)]
    )
    return Image.fromarray(gray, "L").convert("RGB")


def _strips(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """A few rows at a time: doubles of the whole image would take eight times its memory."""
    rows = max(1, _STRIP_PIXELS // values.shape[1])
    return (values[start : start + rows] for start in range(0, len(values), rows))


def _clean(values: NDArray[Any]) -> NDArray[np.float64]:
    return np.nan_to_num(values.astype(np.float64), posinf=0.0)


# The brand at byte 8 of HEIC files: single images and bursts, H.265 inside.
_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})


def is_heic(data: bytes) -> bool:
    r"""Whether it is a HEIC file, by its content: phones and messengers give such files any suffix.

    >>> is_heic(b"\0\0\0\x18ftypheic\0\0"), is_heic(b"\0\0\0\x18ftypavif\0\0"), is_heic(b"\xff\xd8\xff\xe0JFIF")
    (True, False, False)
    """
    return data[4:8] == b"ftyp" and data[8:12] in _BRANDS


@cache
def missing_decoder() -> LabelwiseError | None:
    """Register the HEIC decoder with Pillow, once. Returns the error that says what to install if there is none."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return missing_extra("pillow-heif", "heic")
    register_heif_opener()
    return None


def duplicate_groups(paths: Sequence[str], progress: ShowProgress = False) -> list[list[int]]:
    """Groups of two and more rows of `paths` whose files are equal byte by byte.

    Only files of equal size are read; files that do not exist, or are empty, are ignored.
    """
    by_size: dict[int, list[int]] = defaultdict(list)
    for row, path in enumerate(paths):
        with suppress(OSError, ValueError):  # ValueError: a NUL in the name
            about = os.stat(path)
            if stat.S_ISREG(about.st_mode) and about.st_size:  # a pipe would be waited for
                by_size[about.st_size].append(row)
    candidates = [row for rows in by_size.values() if len(rows) > 1 for row in rows]
    by_content: dict[bytes, list[int]] = defaultdict(list)
    for row in track(candidates, "Comparing files of equal size", shown=progress, unit="files"):
        with suppress(OSError):  # a folder, or a file that may not be read: decoding tells
            by_content[sha256(Path(paths[row])).digest()].append(row)
    return sorted(sorted(rows) for rows in by_content.values() if len(rows) > 1)
