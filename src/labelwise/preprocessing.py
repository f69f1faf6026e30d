"""How a picture becomes the backbone's input: saved with every model, so that nobody has to remember it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from labelwise.config import Config

ImageSize = Annotated[int, Field(ge=8, le=4096)]
Triple = tuple[float, float, float]


class Preprocessing(Config):
    size: ImageSize = 224  # the input is size x size pixels
    mean: Triple = (0.0, 0.0, 0.0)  # per RGB channel, of values scaled to [0, 1]
    std: Triple = (1.0, 1.0, 1.0)
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    # squash: resize both sides to `size`, the multi-label papers' way, which cuts no object off;
    # crop: shorter side to `size`, then the centre; pad: longer side to `size`, then fill up.
    resize: Literal["squash", "crop", "pad"] = "squash"
