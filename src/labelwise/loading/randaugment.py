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
_HOLE = 20  # pixels: the side of the largest hole, whatever the size of the image

Operation = Callable[[Image.Image, float], Image.Image]


def _sign() -> int:
    return 1 if torch.rand(()) < 0.5 else -1


def _affine(image: Image.Image, matrix: tuple[float, ...], resample: Image.Resampling) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=_FILL)


def _shear_x(image: Image.Image, share: float) -> Image.Image:
    return _affine(image, (1, 0.3 * share * _sign(), 0, 0, 1, 0), Image.Resampling.BICUBIC)


def _shear_y(image: Image.Image, share: float) -> Image.Image:
    return _affine(image, (1, 0, 0, 0.3 * share * _sign(), 1, 0), Image.Resampling.BICUBIC)


def _translate_x(image: Image.Image, share: float) -> Image.Image:
    return _affine(image, (1, 0, 150 / 331 * share * image.width * _sign(), 0, 1, 0), Image.Resampling.NEAREST)


def _translate_y(image: Image.Image, share: float) -> Image.Image:
    return _affine(image, (1, 0, 0, 0, 1, 150 / 331 * share * image.height * _sign()), Image.Resampling.NEAREST)


def _rotate(image: Image.Image, share: float) -> Image.Image:
    return image.rotate(30 * share, fillcolor=_FILL)  # counter-clockwise only, as in the package


def _posterize(image: Image.Image, share: float) -> Image.Image:
    return ImageOps.posterize(image, round(8 - 4 * share))


def _solarize(image: Image.Image, share: float) -> Image.Image:
    return ImageOps.solarize(image, round(256 * (1 - share)))


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, share: kind(image).enhance(1 + 0.9 * share * _sign())


def _hole(image: Image.Image, share: float) -> Image.Image:
    half = round(_HOLE * share) // 2
    x, y = (int(torch.randint(side, ())) for side in image.size)
    holed = image.copy()
    if half:
        box = (max(0, x - half), max(0, y - half), min(image.width, x + half) - 1, min(image.height, y + half) - 1)
        ImageDraw.Draw(holed).rectangle(box, fill=_HOLE_FILL)
    return holed


# Each takes an image and a strength from 0 to 1.
OPERATIONS: dict[str, Operation] = {
    "invert": lambda image, _: ImageOps.invert(image),
    "hole": _hole,
    "sharpness": _enhance(ImageEnhance.Sharpness),
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "posterize": _posterize,
    "shear-x": _shear_x,
    "translate-x": _translate_x,
    "translate-y": _translate_y,
    "shear-y": _shear_y,
    "rotate": _rotate,
    "equalize": lambda image, _: ImageOps.equalize(image),
    "contrast": _enhance(ImageEnhance.Contrast),
    "colour": _enhance(ImageEnhance.Color),
    "solarize": _solarize,
    "brightness": _enhance(ImageEnhance.Brightness),
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
