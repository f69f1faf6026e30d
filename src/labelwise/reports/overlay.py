"""Pictures inside a page: as data URIs, and with an attention map laid over them."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labelwise.data.images import BadImageError, load_image
from labelwise.data.preprocessing import Preprocessing
from labelwise.reports.html import Html, join, tag

# The colour map inferno (perceptually uniform: equal steps of heat look like equal steps) at nine even points.
_INFERNO = np.array(
    [(0, 0, 4), (31, 12, 72), (85, 15, 109), (136, 34, 106), (186, 54, 85), (227, 89, 51), (249, 140, 10),
     (249, 201, 50), (252, 255, 164)], np.float64
)  # fmt: skip
COLDEST = 0.3  # of the colour map: black would only darken the picture
_DENSEST = 0.72  # opacity where it looked most: the picture stays visible
_GREYED = 0.6  # how far the picture loses its own colours, which would be taken for heat

_ALL_OF_IT = Preprocessing()  # squashes: nothing is cut off
Box = tuple[int, int, int, int]  # left, top, right, bottom


def overlay(
    picture: Image.Image, attention: NDArray[np.floating], preprocessing: Preprocessing = _ALL_OF_IT
) -> Image.Image:
    """The picture with warm colours where `attention` [H, W] is high. The model's preprocessing says which part of the
    picture the map covers.
    """
    left, top, right, bottom = seen_box(picture.width, picture.height, preprocessing)
    smooth = Image.fromarray(heat(attention).astype(np.float32)).resize(
        (right - left, bottom - top), Image.Resampling.BICUBIC
    )
    canvas = Image.new("F", picture.size)  # 0: not seen
    canvas.paste(smooth, (left, top))
    warm = np.asarray(canvas, np.float64).clip(0, 1)[..., None]  # [h, w, 1]
    colours = np.asarray(picture.convert("RGB"), np.float64)  # [h, w, 3]
    grey = np.asarray(picture.convert("L"), np.float64)[..., None]
    base = colours * (1 - _GREYED) + grey * _GREYED
    mixed = base * (1 - _DENSEST * warm) + heat_colour(COLDEST + (1 - COLDEST) * warm[..., 0]) * _DENSEST * warm
    return Image.fromarray(mixed.round().astype(np.uint8))


def heat(attention: NDArray[np.floating]) -> NDArray[np.float64]:
    """0 to 1 from the least to the most attended place; faint all over if attention is spread almost evenly, because
    stretching tiny differences would show a preference that is not there.

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
    """What a model sees of a picture, in the picture's pixels; padding lies outside of it.

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


def data_uri(picture: Image.Image, longest: int = 320) -> str:
    """The picture as a JPEG inside an address, not larger than `longest` pixels on its longer side."""
    small = picture.convert("RGB")
    small.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    data = BytesIO()
    small.save(data, "JPEG", quality=86, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode("ascii")


_SIDE = 190  # pixels of the longer side inside the page


def picture_card(image: str, label: str, words: str, present: tuple[str, ...]) -> Html:
    """A picture, what is claimed about `label`, and what its labels say."""
    name = Path(image).name
    return tag(
        "figure",
        _thumbnail(image, f"{name}: {', '.join(present) or 'no label'}"),
        tag(
            "figcaption",
            tag("b", label),
            tag("span", words),
            tag("small", f"labelled: {', '.join(present) or 'nothing'}"),
            tag("small", name, title=image, class_="path"),
        ),
    )


def picture_grid(cards: list[Html]) -> Html:
    return tag("div", join(*cards), class_="pictures")


def _thumbnail(image: str, alt: str) -> Html:
    try:
        return tag("img", src=data_uri(load_image(image, min_side=_SIDE), _SIDE), alt=alt)
    except BadImageError as error:
        return tag("div", f"no picture: {error.reason}", class_="gone", role="img", aria_label=alt)
