"""Images that are not files: NumPy arrays, tensors, URLs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.core.arrays import to_numpy
from labelwise.core.errors import LabelwiseError
from labelwise.data.images import BadImageError, Encoded

MAX_URL_BYTES = 64 << 20
URL_SECONDS = 30.0  # for the whole download
_CHUNK = 1 << 16
_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA


class TensorLike(Protocol):
    """A torch tensor; torch itself is not imported."""

    def detach(self) -> Any: ...

    def cpu(self) -> Any: ...

    def numpy(self) -> Any: ...


def is_tensor(value: object) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("detach", "cpu", "numpy"))


def from_tensor(tensor: TensorLike) -> Iterator[Image.Image]:
    """The images of a tensor [C, H, W], [H, W] or [B, C, H, W]: 8 bits, or floats between 0 and 1."""
    values = to_numpy(tensor)
    channels_first = values.ndim == 4 or (values.ndim == 3 and values.shape[0] in _CHANNELS)
    yield from from_array(np.moveaxis(values, -3, -1) if channels_first else values)


def from_array(values: NDArray[Any]) -> Iterator[Image.Image]:
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


def _to_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
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
