"""Images inside a page: as data URIs, and with an attention map laid over them."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.data.images import BadImageError, Box, load_image
from labelwise.data.preprocessing import Preprocessing

# The colour map inferno (perceptually uniform: equal steps of heat look like equal steps) at nine even points.
_INFERNO = np.array(
    [(0, 0, 4), (31, 12, 72), (85, 15, 109), (136, 34, 106), (186, 54, 85), (227, 89, 51), (249, 140, 10),
     (249, 201, 50), (252, 255, 164)], np.float64
)  # fmt: skip
COLDEST = 0.3  # where the colour map begins: black would only darken the image
_DENSEST = 0.72  # opacity where attention is highest: the image stays visible
_GREYED = 0.6  # how far the image loses its own colours, which would be taken for heat

_WHOLE_IMAGE = Preprocessing()  # squashes: nothing is cut off


def overlay(
    image: Image.Image,
    attention: NDArray[np.floating],
    preprocessing: Preprocessing = _WHOLE_IMAGE,
    *,
    score: float = 1.0,
) -> Image.Image:
    """Lay warm colours over an image where attention is high.

    Args:
        image: The image.
        attention: The map [H, W].
        preprocessing: The model's, which decides which part of the image the map covers.
        score: The label's, which the colours are scaled by: attention sums to 1 also for a label that is not there.

    >>> overlay(Image.new("RGB", (40, 20)), np.eye(4)).size
    (40, 20)
    """
    left, top, right, bottom = seen_box(image.width, image.height, preprocessing)
    smooth = Image.fromarray((score * heat(attention)).astype(np.float32)).resize(
        (right - left, bottom - top), Image.Resampling.BICUBIC
    )
    canvas = Image.new("F", image.size)  # 0: not seen
    canvas.paste(smooth, (left, top))
    warm = np.asarray(canvas, np.float64).clip(0, 1)[..., None]  # [h, w, 1]
    colours = np.asarray(image.convert("RGB"), np.float64)  # [h, w, 3]
    grey = np.asarray(image.convert("L"), np.float64)[..., None]
    base = colours * (1 - _GREYED) + grey * _GREYED
    mixed = base * (1 - _DENSEST * warm) + heat_colour(COLDEST + (1 - COLDEST) * warm[..., 0]) * _DENSEST * warm
    return Image.fromarray(mixed.round().astype(np.uint8))


def heat(attention: NDArray[np.floating]) -> NDArray[np.float64]:
    """Attention scaled to 0..1 from its minimum to its maximum.

    Almost even attention stays faint everywhere: stretching tiny differences would show a preference that is not there.

    >>> heat(np.array([[0.1, 0.7], [0.1, 0.1]])).round(3).tolist(), heat(np.full((2, 2), 0.25)).max().tolist()
    ([[0.0, 1.0], [0.0, 0.0]], 0.0)
    """
    values = np.asarray(attention, np.float64)
    low, span = values.min(), values.max() - values.min()
    shares: NDArray[np.float64] = (values - low) / max(span, values.mean(), 1e-12)
    return shares


def heat_colour(share: NDArray[np.float64]) -> NDArray[np.float64]:
    """RGB [..., 3] in 0..255 for values 0..1.

    >>> heat_colour(np.array([0.0, 1.0])).tolist()
    [[0.0, 0.0, 4.0], [252.0, 255.0, 164.0]]
    """
    places = np.linspace(0, 1, len(_INFERNO))
    return np.stack([np.interp(share, places, _INFERNO[:, channel]) for channel in range(3)], axis=-1)


def seen_box(width: int, height: int, preprocessing: Preprocessing) -> Box:
    """What a model sees of an image, in the image's pixels; padding lies outside of it.

    >>> seen_box(40, 20, Preprocessing(resize="squash")), seen_box(40, 20, Preprocessing(resize="pad"))
    ((0, 0, 40, 20), (0, -10, 40, 30))
    >>> seen_box(40, 20, Preprocessing(resize="crop")), seen_box(40, 20, Preprocessing(resize="crop", crop_ratio=0.5))
    ((10, 0, 30, 20), (15, 5, 25, 15))
    """
    if preprocessing.resize == "squash":
        return 0, 0, width, height
    crops = preprocessing.resize == "crop"
    side = round(min(width, height) * preprocessing.crop_ratio) if crops else max(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def data_uri(image: Image.Image, longest: int = 320) -> str:
    """The image as a JPEG data URI, at most `longest` pixels on its longer side."""
    small = image.convert("RGB")
    small.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    data = BytesIO()
    small.save(data, "JPEG", quality=86, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode("ascii")


def thumbnail(image: str, longest: int = 190) -> dict[str, str]:
    """An image file for the template of a card: `uri`, or the `reason` why it cannot be shown."""
    about = {"path": image, "name": Path(image).name, "uri": "", "reason": ""}
    try:
        return about | {"uri": data_uri(load_image(image, min_side=longest), longest)}
    except BadImageError as error:
        return about | {"reason": error.reason}
