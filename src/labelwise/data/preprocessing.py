"""How a picture becomes the backbone's input: saved with every model, so that nobody has to remember it."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, model_validator

from labelwise.core.config import Config

ImageSize = Annotated[int, Field(ge=8, le=4096)]
CropRatio = Annotated[float, Field(gt=0, le=1)]
Triple = tuple[float, float, float]


class Preprocessing(Config):
    size: ImageSize = 224  # the input is size x size pixels
    mean: Triple = (0.0, 0.0, 0.0)  # per RGB channel, of values scaled to [0, 1]
    std: Triple = (1.0, 1.0, 1.0)
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    # squash: resize both sides to `size`, the multi-label papers' way, which cuts no object off;
    # crop: shorter side to `size`, then the centre; pad: longer side to `size`, then fill up.
    resize: Literal["squash", "crop", "pad"] = "squash"
    crop_ratio: CropRatio = 1.0  # crop: shorter side to size / crop_ratio instead, so that the centre is a smaller part

    @property
    def shorter_side(self) -> int:
        """To which `crop` resizes the picture before it takes the centre."""
        return math.floor(self.size / self.crop_ratio)

    @model_validator(mode="after")
    def _ratio_of_a_crop(self) -> Self:
        if self.crop_ratio < 1 and self.resize != "crop":
            raise ValueError(f"crop_ratio={self.crop_ratio:g} needs resize=crop, not {self.resize}")
        return self


_STRIP = 16  # times as long as wide: no photo is
GREY = 128  # what fills the bars of `pad`, and holes in training


class InputTransform:
    """PIL RGB picture -> float32 [3, size, size], always the same for the same picture.

    `min_side` is the shorter side that `load_image` has to deliver for it.

    >>> red = Image.new("RGB", (40, 20), (255, 0, 0))
    >>> InputTransform(Preprocessing(size=8, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)))(red)[:, 0, 0].tolist()
    [1.0, -1.0, -1.0]
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing
        self.min_side = preprocessing.shorter_side
        # A pixel has 256 values: the input of each is looked up, not computed, in each channel [3, 256].
        mean, std = (np.array(values, np.float32)[:, None] for values in (preprocessing.mean, preprocessing.std))
        self._table = (np.arange(256, dtype=np.float32) * np.float32(1 / 255) - mean) / std

    def __call__(self, image: Image.Image) -> NDArray[np.float32]:
        pixels = np.asarray(fit_square(image, self.preprocessing))  # [size, size, 3]
        values = np.empty((3, *pixels.shape[:2]), np.float32)
        for channel in range(3):
            self._table[channel].take(pixels[:, :, channel], out=values[channel], mode="clip")
        return values


def fit_square(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    """The picture as size x size pixels, by the way of `preprocessing.resize`."""
    size, method = preprocessing.size, Image.Resampling[preprocessing.interpolation.upper()]
    if preprocessing.resize == "squash":
        return _resized(image, size, size, method)
    shorter, longer = sorted(image.size)
    if preprocessing.resize == "pad":
        width, height = (max(1, int(size * side / longer)) for side in image.size)
        return pad_to_square(_resized(image, width, height, method))
    if longer > _STRIP * shorter:  # far from the middle nothing is seen, and to enlarge it may take gigabytes
        image = _middle(image, _STRIP * shorter)
    width, height = (int(preprocessing.shorter_side * side / shorter) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return _resized(image, width, height, method).crop((left, top, left + size, top + size))


def _middle(image: Image.Image, longest: int) -> Image.Image:
    """The picture without what makes it longer than that."""
    width, height = (min(side, longest) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def pad_to_square(image: Image.Image) -> Image.Image:
    """Grey bars on both sides of the shorter dimension."""
    side = max(image.size)
    square = Image.new("RGB", (side, side), (GREY, GREY, GREY))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def _resized(image: Image.Image, width: int, height: int, method: Image.Resampling) -> Image.Image:
    return image if image.size == (width, height) else image.resize((width, height), method)
