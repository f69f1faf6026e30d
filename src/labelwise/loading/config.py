"""How training images are augmented, as a part of the recipe. No PyTorch: a mistake in it is told at once."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from labelwise.core.config import Config


class AugmentationConfig(Config):
    """How training images are augmented. Cutout and RandAugment are those of ML-Decoder's and Q2L's training codes.

    Args:
        flip: Probability of a horizontal flip.
        crop: Smallest share of the area that a random crop keeps; 1: no crop.
        cutout: Side of the hole relative to the image's; 0: none.
        cutout_fill: random: another colour for each image (ML-Decoder's code).
        policy: randaugment: torchvision's. randaugment-timm: that of the ImageNet recipes, whose operations all grow
            stronger with the strength. randaugment-uniform: that of Query2Label's and ML-Decoder's codes, without a
            strength. autoaugment: its ImageNet policy.
        strength: Of RandAugment: up to 30 (torchvision's) or 10 (timm's).
        strength_spread: Standard deviation of the strength; only timm's.
        colour_jitter: Largest change of brightness, contrast and saturation, as a factor.
        erasing: Probability of random erasing (Zhong et al., 2020): noise over a rectangle of 2 to 33 % of the area.
        repeats: Repeated augmentation: how often an image is in one batch, each time augmented anew. As an epoch keeps
            its length, it then sees only one image in `repeats`.
    """

    flip: float = Field(default=0.5, ge=0, le=1)
    crop: float = Field(default=1.0, gt=0, le=1)
    cutout: float = Field(default=0.5, ge=0, lt=1)
    cutout_fill: Literal["grey", "random"] = "grey"
    policy: Literal["none", "randaugment", "randaugment-timm", "randaugment-uniform", "autoaugment"] = "randaugment"
    strength: int = Field(default=9, ge=0, le=30)
    strength_spread: float = Field(default=0.0, ge=0)
    colour_jitter: float = Field(default=0.0, ge=0, le=1)
    erasing: float = Field(default=0.0, ge=0, le=1)
    repeats: PositiveInt = 1

    @model_validator(mode="after")
    def _strength_of_a_policy(self) -> Self:
        if self.policy == "randaugment-timm" and self.strength > 10:
            raise ValueError(f"strength={self.strength} is too much for randaugment-timm; it goes to 10")
        if self.strength_spread and self.policy != "randaugment-timm":
            raise ValueError("strength_spread needs policy=randaugment-timm")
        return self
