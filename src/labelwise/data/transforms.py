"""From a decoded picture to the backbone's input, for evaluation and for training, and mixing within a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from PIL import Image
from pydantic import Field
from torch import Tensor, nn
from torchvision.transforms import v2

from labelwise.config import Config
from labelwise.preprocessing import Preprocessing

GREY = 128  # what fills holes and the corners that a rotation leaves


class AugmentationConfig(Config):
    """How training pictures are varied. Cutout and RandAugment are those of ML-Decoder's and Q2L's training codes."""

    flip: float = Field(default=0.5, ge=0, le=1)  # chance to mirror left and right
    crop: float = Field(default=1.0, gt=0, le=1)  # smallest share of the area a random crop keeps; 1 = no crop
    cutout: float = Field(default=0.5, ge=0, lt=1)  # side of the grey hole as a share of the picture's; 0 = none
    policy: Literal["none", "randaugment", "autoaugment"] = "randaugment"  # autoaugment: its ImageNet policy
    colour_jitter: float = Field(default=0.0, ge=0, le=1)  # brightness, contrast, saturation by up to this factor


class ImageTransform(nn.Module):
    """PIL RGB picture -> float tensor [3, size, size]. Random parts draw from torch's global generator.

    `at_least` is the shorter side that `load_image` has to deliver for it.
    """

    def __init__(self, steps: list[nn.Module], preprocessing: Preprocessing, at_least: int) -> None:
        super().__init__()
        self.at_least = at_least
        self.steps = v2.Compose([*steps, *_to_input(preprocessing)])

    def forward(self, image: Image.Image) -> Tensor:
        tensor: Tensor = self.steps(image)
        return tensor.as_subclass(Tensor)


def eval_transform(preprocessing: Preprocessing) -> ImageTransform:
    """Always the same for the same picture.

    >>> red = Image.new("RGB", (40, 20), (255, 0, 0))
    >>> eval_transform(Preprocessing(size=8, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)))(red)[:, 0, 0].tolist()
    [1.0, -1.0, -1.0]
    """
    return ImageTransform(_resize(preprocessing), preprocessing, at_least=preprocessing.size)


def train_transform(preprocessing: Preprocessing, augmentation: AugmentationConfig) -> ImageTransform:
    """Varied at random; what is left at its neutral value costs nothing."""
    size, mode = preprocessing.size, v2.InterpolationMode(preprocessing.interpolation)
    if augmentation.crop < 1:
        steps: list[nn.Module] = [v2.RandomResizedCrop(size, scale=(augmentation.crop, 1.0), interpolation=mode)]
    else:
        steps = _resize(preprocessing)
    if augmentation.flip:
        steps.append(v2.RandomHorizontalFlip(augmentation.flip))
    if augmentation.colour_jitter:
        steps.append(v2.ColorJitter(*[augmentation.colour_jitter] * 3))
    if augmentation.cutout:  # before the policy, as in the training codes
        steps.append(Cutout(augmentation.cutout))
    if augmentation.policy == "randaugment":
        steps.append(v2.RandAugment(fill=GREY))
    elif augmentation.policy == "autoaugment":
        steps.append(v2.AutoAugment(v2.AutoAugmentPolicy.IMAGENET, fill=GREY))
    # The smallest crop has to hold `size` pixels, or the decoder's down-scaling would blur it.
    return ImageTransform(steps, preprocessing, at_least=math.ceil(size / math.sqrt(augmentation.crop)))


class Cutout(nn.Module):
    """One grey hole whose sides are `share` of the picture's. Its centre lies anywhere, so it may stick out."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, image: Image.Image) -> Image.Image:
        width, height = image.size
        half_width, half_height = round(width * self.share / 2), round(height * self.share / 2)
        x, y = (int(torch.randint(side, ())) for side in (width, height))
        holed = image.copy()
        holed.paste((GREY, GREY, GREY), (x - half_width, y - half_height, x + half_width, y + half_height))
        return holed


class PadToSquare(nn.Module):
    """Grey bars on both sides of the shorter dimension."""

    def forward(self, image: Image.Image) -> Image.Image:
        side = max(image.size)
        left, top = (side - image.width) // 2, (side - image.height) // 2
        square = Image.new("RGB", (side, side), (GREY, GREY, GREY))
        square.paste(image, (left, top))
        return square


def _resize(preprocessing: Preprocessing) -> list[nn.Module]:
    size, mode = preprocessing.size, v2.InterpolationMode(preprocessing.interpolation)
    if preprocessing.resize == "squash":
        return [v2.Resize((size, size), interpolation=mode)]
    if preprocessing.resize == "crop":
        return [v2.Resize(size, interpolation=mode), v2.CenterCrop(size)]
    return [v2.Resize(None, max_size=size, interpolation=mode), PadToSquare()]


def _to_input(preprocessing: Preprocessing) -> list[nn.Module]:
    steps: list[nn.Module] = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    if preprocessing.mean != (0, 0, 0) or preprocessing.std != (1, 1, 1):
        steps.append(v2.Normalize(preprocessing.mean, preprocessing.std))
    return steps


def batch_mix(*, mixup: float = 0.0, cutmix: float = 0.0) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """MixUp and CutMix with these Beta parameters (0 = off; both: one of them at random for each batch), or None.

    The result takes images [B, 3, H, W] and targets [B, N] in {1, 0, -1} and gives mixed images and float targets in
    [0, 1] or -1: what is unknown in either of the two pictures is unknown in the mixture, because any value put in its
    place would be an invented label.

    >>> mix = batch_mix(mixup=0.4)
    >>> _, targets = mix(torch.rand(2, 3, 8, 8), torch.tensor([[1, 0, 1], [1, -1, 0]]))
    >>> targets[:, 1].tolist()
    [-1.0, -1.0]
    """
    choices = [kind(alpha=alpha) for kind, alpha in ((v2.MixUp, mixup), (v2.CutMix, cutmix)) if alpha]
    if not choices:
        return None
    mixer = v2.RandomChoice(choices)

    def mix(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        unknown = targets < 0  # [B, N]
        # The mask travels as N more labels, so that it is mixed with exactly the partners the pictures get.
        columns = torch.cat([targets.clamp(min=0), unknown], dim=1).float()  # [B, 2N]
        mixed_images, mixed = mixer(images, columns)
        values, doubt = mixed.chunk(2, dim=1)  # [B, N] each
        return mixed_images, values.masked_fill(doubt > 0, -1.0)

    return mix
