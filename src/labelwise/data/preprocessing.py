"""From a decoded image to the backbone's input. The settings are saved with every model."""

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
    """How an image becomes the input of a backbone.

    Args:
        size: The input is size x size pixels.
        mean: Subtracted from each RGB channel, of values in [0, 1].
        std: What each channel is then divided by.
        interpolation: Of the resizing.
        resize: squash: both sides to `size`, as in the multi-label papers, which cuts no object off. crop: the shorter
            side to `size`, then the centre. pad: the longer side to `size`, then grey bars.
        crop_ratio: With crop: the shorter side becomes size / crop_ratio, so that the centre is a smaller part.
    """

    size: ImageSize = 224
    mean: Triple = (0.0, 0.0, 0.0)
    std: Triple = (1.0, 1.0, 1.0)
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    resize: Literal["squash", "crop", "pad"] = "squash"
    crop_ratio: CropRatio = 1.0

    @property
    def shorter_side(self) -> int:
        """What `crop` resizes the shorter side to before it takes the centre."""
        return math.floor(self.size / self.crop_ratio)

    @model_validator(mode="after")
    def _ratio_of_a_crop(self) -> Self:
        if self.crop_ratio < 1 and self.resize != "crop":
            raise ValueError(f"crop_ratio={self.crop_ratio:g} needs resize=crop, not {self.resize}")
        return self


_STRIP = 16  # times as long as wide: no ordinary image is
GREY = 128  # of the bars of `pad`, and of the holes of Cutout


class InputTransform:
    """PIL RGB image -> float32 [3, size, size], always the same for the same image.

    `min_side` is the shorter side that it needs from `load_image`.

    >>> red = Image.new("RGB", (40, 20), (255, 0, 0))
    >>> InputTransform(Preprocessing(size=8, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)))(red)[:, 0, 0].tolist()
    [1.0, -1.0, -1.0]
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing
        self.min_side = preprocessing.shorter_side
        # A channel of a pixel has 256 values: their inputs are looked up, not computed, [3, 256].
        mean, std = (np.array(values, np.float32)[:, None] for values in (preprocessing.mean, preprocessing.std))
        self._table = (np.arange(256, dtype=np.float32) * np.float32(1 / 255) - mean) / std

    def __call__(self, image: Image.Image) -> NDArray[np.float32]:
        pixels = np.asarray(fit_square(image, self.preprocessing))  # [size, size, 3]
        values = np.empty((3, *pixels.shape[:2]), np.float32)
        for channel in range(3):
            self._table[channel].take(pixels[:, :, channel], out=values[channel], mode="clip")
        return values


def fit_square(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    """Resize an image to size x size pixels, in the way of `preprocessing.resize`."""
    size, method = preprocessing.size, Image.Resampling[preprocessing.interpolation.upper()]
    if preprocessing.resize == "squash":
        return _resized(image, size, size, method)
    shorter, longer = sorted(image.size)
    if preprocessing.resize == "pad":
        width, height = (max(1, int(size * side / longer)) for side in image.size)
        return pad_to_square(_resized(image, width, height, method))
    if longer > _STRIP * shorter:  # the ends are cropped anyway, and to enlarge them may take gigabytes
        width, height = (min(side, _STRIP * shorter) for side in image.size)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    width, height = (int(preprocessing.shorter_side * side / shorter) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return _resized(image, width, height, method).crop((left, top, left + size, top + size))


def pad_to_square(image: Image.Image) -> Image.Image:
    """Add grey bars on both sides of the shorter dimension."""
    side = max(image.size)
    square = Image.new("RGB", (side, side), (GREY, GREY, GREY))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def _resized(image: Image.Image, width: int, height: int, method: Image.Resampling) -> Image.Image:
    return image if image.size == (width, height) else image.resize((width, height), method)
