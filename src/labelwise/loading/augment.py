"""From a decoded image to the backbone's input, for evaluation and training, and mixing within a batch."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

from labelwise.data.preprocessing import GREY, InputTransform, Preprocessing, fit_square
from labelwise.loading.config import AugmentationConfig
from labelwise.loading.randaugment import UniformRandAugment


class ImageTransform(nn.Module):
    """PIL RGB image -> float tensor [3, size, size]. Random parts draw from torch's global generator.

    `min_side` is the shorter side that it needs from `load_image`.
    """

    def __init__(
        self, steps: list[nn.Module], preprocessing: Preprocessing, min_side: int, erasing: float = 0.0
    ) -> None:
        super().__init__()
        self.min_side = min_side
        # Erased last: its noise has the mean and the variance of normalised images, as in timm.
        last = [v2.RandomErasing(erasing, value="random")] if erasing else []
        self.steps = v2.Compose([*steps, *_to_input(preprocessing), *last])

    def forward(self, image: Image.Image) -> Tensor:
        tensor: Tensor = self.steps(image)
        return tensor.as_subclass(Tensor)


class EvalTransform:
    """`InputTransform` for torch: PIL RGB image -> float tensor [3, size, size]."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.min_side = preprocessing.shorter_side
        self._to_input = InputTransform(preprocessing)

    def __call__(self, image: Image.Image) -> Tensor:
        return torch.from_numpy(self._to_input(image))


def eval_transform(preprocessing: Preprocessing) -> EvalTransform:
    """The transform of evaluation: always the same for the same image.

    >>> red = Image.new("RGB", (40, 20), (255, 0, 0))
    >>> eval_transform(Preprocessing(size=8, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)))(red)[:, 0, 0].tolist()
    [1.0, -1.0, -1.0]
    """
    return EvalTransform(preprocessing)


def train_transform(preprocessing: Preprocessing, augmentation: AugmentationConfig) -> ImageTransform:
    """The transform of training, with random augmentation; what is off costs nothing."""
    size, mode = preprocessing.size, v2.InterpolationMode(preprocessing.interpolation)
    if augmentation.crop < 1:
        steps: list[nn.Module] = [v2.RandomResizedCrop(size, scale=(augmentation.crop, 1.0), interpolation=mode)]
        # The smallest crop has to hold `size` pixels, or the decoder's down-scaling would blur it.
        min_side = math.ceil(size / math.sqrt(augmentation.crop))
    else:
        steps, min_side = [FitSquare(preprocessing)], preprocessing.shorter_side
    if augmentation.flip:
        steps.append(v2.RandomHorizontalFlip(augmentation.flip))
    if augmentation.colour_jitter:
        steps.append(v2.ColorJitter(*[augmentation.colour_jitter] * 3))
    if augmentation.cutout:  # before the policy, as in the training codes
        steps.append(Cutout(augmentation.cutout, augmentation.cutout_fill))
    if augmentation.policy == "randaugment":
        steps.append(v2.RandAugment(magnitude=augmentation.strength, fill=GREY))
    elif augmentation.policy == "randaugment-timm":
        steps.append(TimmRandAugment(augmentation.strength, augmentation.strength_spread, preprocessing))
    elif augmentation.policy == "randaugment-uniform":
        steps.append(UniformRandAugment())
    elif augmentation.policy == "autoaugment":
        steps.append(v2.AutoAugment(v2.AutoAugmentPolicy.IMAGENET, fill=GREY))
    return ImageTransform(steps, preprocessing, min_side, augmentation.erasing)


class TimmRandAugment(nn.Module):
    """timm's `rand-m<strength>-mstd<spread>-inc1`: two operations, each applied with a chance of one half.

    It draws from Python's and numpy's generators. They are seeded from torch's for the call and restored afterwards, so
    that images depend on torch's seed alone, as with all other augmentation.
    """

    def __init__(self, strength: int, spread: float, preprocessing: Preprocessing) -> None:
        super().__init__()
        from timm.data.auto_augment import rand_augment_transform

        hints = {  # as timm's own training sets them
            "translate_const": int(preprocessing.size * 0.45),
            "img_mean": tuple(min(255, round(255 * mean)) for mean in preprocessing.mean),
            "interpolation": Image.Resampling[preprocessing.interpolation.upper()],
        }
        self.augment = rand_augment_transform(f"rand-m{strength}-mstd{spread:g}-inc1", hints)

    def forward(self, image: Image.Image) -> Image.Image:
        states = random.getstate(), np.random.get_state()
        seed = int(torch.randint(2**32, ()))
        random.seed(seed)
        np.random.seed(seed)
        try:
            varied: Image.Image = self.augment(image)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
        return varied


class Cutout(nn.Module):
    """One hole whose sides are `share` of the image's. Its centre is drawn from all pixels: the hole may be cut off."""

    def __init__(self, share: float, fill: Literal["grey", "random"] = "grey") -> None:
        super().__init__()
        self.share, self.fill = share, fill

    def forward(self, image: Image.Image) -> Image.Image:
        width, height = image.size
        half_width, half_height = round(width * self.share / 2), round(height * self.share / 2)
        x, y = (int(torch.randint(side, ())) for side in (width, height))
        holed = image.copy()
        red, green, blue = torch.randint(256, (3,)).tolist() if self.fill == "random" else (GREY, GREY, GREY)
        holed.paste((red, green, blue), (x - half_width, y - half_height, x + half_width, y + half_height))
        return holed


class FitSquare(nn.Module):
    """The image as a square, as in evaluation."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.preprocessing = preprocessing

    def forward(self, image: Image.Image) -> Image.Image:
        return fit_square(image, self.preprocessing)


def _to_input(preprocessing: Preprocessing) -> list[nn.Module]:
    steps: list[nn.Module] = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    if preprocessing.mean != (0, 0, 0) or preprocessing.std != (1, 1, 1):
        steps.append(v2.Normalize(preprocessing.mean, preprocessing.std))
    return steps


def batch_mix(
    *, mixup: float = 0.0, cutmix: float = 0.0, repeats: int = 1
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """MixUp and CutMix with these Beta parameters (0 = off; both: one of them at random for each batch), or None.

    With repeated augmentation, up to `repeats` neighbours in a batch are copies of one image; an image is never mixed
    with a copy of itself.

    The result takes images [B, 3, H, W] and targets [B, N] in {1, 0, -1} and gives mixed images and float targets in
    [0, 1] or -1: what is unknown in either of the two images is unknown in the mixture, because any value would be
    an invented label.

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
        if repeats > 1:  # torchvision mixes each image with the one before it: copies must not be neighbours
            apart = torch.cat([torch.arange(first, len(images), repeats) for first in range(repeats)])
            images, targets = images[apart], targets[apart]
        unknown = targets < 0  # [B, N]
        # The mask travels as N more labels, so that it is mixed with exactly the partners that the images get.
        columns = torch.cat([targets.clamp(min=0), unknown], dim=1).float()  # [B, 2N]
        mixed_images, mixed = mixer(images, columns)
        values, doubt = mixed.chunk(2, dim=1)  # [B, N] each
        return mixed_images, values.masked_fill(doubt > 0, -1.0)

    return mix


def join_pairs(maps: Tensor, partners: Tensor) -> Tensor:
    """Each map of a batch joined with the one that `partners` [B] names: [B, C, H, W] -> [B, C, 2H, W]."""
    return torch.cat((maps, maps[partners]), dim=2)


def draw_partners(targets: Tensor) -> tuple[Tensor, Tensor]:
    """For each image another one, [B], and the labels of the two together, [B, N]."""
    partners = torch.randperm(len(targets), device=targets.device)
    return partners, label_union(targets, targets[partners])


def label_union(a: Tensor, b: Tensor) -> Tensor:
    """Present in either is present; unknown in one and absent in the other stays unknown.

    >>> label_union(torch.tensor([1, 0, 0, -1, -1]), torch.tensor([-1, 1, 0, 0, -1])).tolist()
    [1, 1, 0, -1, -1]
    """
    either = torch.maximum(a, b)
    return torch.where(((a < 0) | (b < 0)) & (either < 1), -torch.ones_like(either), either)
