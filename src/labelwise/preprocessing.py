"""How a picture becomes the backbone's input: saved with every model, so that nobody has to remember it."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from labelwise.config import Config

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
