"""The RandAugment of the `randaugment` package, which the training codes of Query2Label and ML-Decoder use.

It differs from torchvision's and timm's: two of fifteen operations (inverting and a small hole among them), each
applied with a chance of one half, at a strength drawn anew from 1 to 9 of 9. There is nothing to set.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import nn

STRENGTHS = 9
_FILL = (128, 128, 128)
_HOLE_FILL = (125, 122, 113)
_SHIFT = 150 / 331
_HOLE = 20  # pixels: the side of the largest hole, whatever the size of the image


def _signed(most: float, strength: float) -> float:
    return most * strength * (1 if torch.rand(()) < 0.5 else -1)


def _affine(image: Image.Image, resample: Image.Resampling, **changed: float) -> Image.Image:
    """x' = a x + b y + c, y' = d x + e y + f."""
    matrix = {"a": 1, "b": 0, "c": 0, "d": 0, "e": 1, "f": 0} | changed
    return image.transform(image.size, Image.Transform.AFFINE, tuple(matrix.values()), resample, fillcolor=_FILL)


def _hole(image: Image.Image, strength: float) -> Image.Image:
    half = round(_HOLE * strength) // 2
    x, y = (int(torch.randint(side, ())) for side in image.size)
    holed = image.copy()
    if half:
        box = (max(0, x - half), max(0, y - half), min(image.width, x + half) - 1, min(image.height, y + half) - 1)
        ImageDraw.Draw(holed).rectangle(box, fill=_HOLE_FILL)
    return holed


# Each takes an image and a strength from 0 to 1.
OPERATIONS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "invert": lambda image, _: ImageOps.invert(image),
    "hole": _hole,
    "sharpness": lambda image, s: ImageEnhance.Sharpness(image).enhance(1 + _signed(0.9, s)),
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "posterize": lambda image, s: ImageOps.posterize(image, round(8 - 4 * s)),
    "shear-x": lambda image, s: _affine(image, Image.Resampling.BICUBIC, b=_signed(0.3, s)),
    "translate-x": lambda image, s: _affine(image, Image.Resampling.NEAREST, c=_signed(_SHIFT * image.width, s)),
    "translate-y": lambda image, s: _affine(image, Image.Resampling.NEAREST, f=_signed(_SHIFT * image.height, s)),
    "shear-y": lambda image, s: _affine(image, Image.Resampling.BICUBIC, d=_signed(0.3, s)),
    "rotate": lambda image, s: image.rotate(30 * s, fillcolor=_FILL),  # counter-clockwise only, as in the package
    "equalize": lambda image, _: ImageOps.equalize(image),
    "contrast": lambda image, s: ImageEnhance.Contrast(image).enhance(1 + _signed(0.9, s)),
    "colour": lambda image, s: ImageEnhance.Color(image).enhance(1 + _signed(0.9, s)),
    "solarize": lambda image, s: ImageOps.solarize(image, round(256 * (1 - s))),
    "brightness": lambda image, s: ImageEnhance.Brightness(image).enhance(1 + _signed(0.9, s)),
}


class UniformRandAugment(nn.Module):
    """PIL image -> PIL image, varied at random from torch's global generator."""

    def forward(self, image: Image.Image) -> Image.Image:
        operations = list(OPERATIONS.values())
        for _ in range(2):
            # All three are drawn whether or not the operation applies: the next image does not depend on it.
            applies, which = torch.rand(()) < 0.5, int(torch.randint(len(operations), ()))
            strength = int(torch.randint(1, STRENGTHS + 1, ())) / STRENGTHS
            if applies:
                image = operations[which](image, strength)
        return image
