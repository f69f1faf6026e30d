"""The `randaugment` package's policy: what it draws, how often, how strongly."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageChops
from skimage.transform import AffineTransform, warp

from labelwise.data.preprocessing import Preprocessing
from labelwise.loading.augment import AugmentationConfig, Cutout, train_transform
from labelwise.loading.randaugment import OPERATIONS, UniformRandAugment


@pytest.fixture
def image() -> Image.Image:
    rows, columns = np.mgrid[0:40, 0:60]
    return Image.fromarray(np.stack([rows * 6, columns * 4, (rows + columns) * 2], axis=2).astype(np.uint8))


def test_each_of_two_operations_applies_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[tuple[str, float]] = []
    for name in OPERATIONS:
        monkeypatch.setitem(OPERATIONS, name, lambda image, share, name=name: (applied.append((name, share)), image)[1])
    torch.manual_seed(0)
    augment, blank = UniformRandAugment(), Image.new("RGB", (4, 4))
    for _ in range(3000):
        augment(blank)
    assert len(applied) == pytest.approx(3000, rel=0.05)  # 2 x 1/2 for each image
    names = Counter(name for name, _ in applied)
    assert set(names) == set(OPERATIONS)
    assert min(names.values()) > 120  # 200 are expected of each of the 15
    assert {round(share * 9) for _, share in applied} == set(range(1, 10))


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_keeps_the_size_and_the_input(name: str, image: Image.Image) -> None:
    before = image.copy()
    for share in (1 / 9, 1.0):
        varied = OPERATIONS[name](image, share)
        assert (varied.size, varied.mode) == (image.size, "RGB")
    assert ImageChops.difference(image, before).getbbox() is None


def test_strongest_values(image: Image.Image) -> None:
    pixels = np.asarray(image)
    assert np.array_equal(np.asarray(OPERATIONS["invert"](image, 1.0)), 255 - pixels)
    assert np.array_equal(np.asarray(OPERATIONS["posterize"](image, 1.0)), pixels & 0b11110000)  # four bits are left
    assert np.array_equal(np.asarray(OPERATIONS["solarize"](image, 1.0)), 255 - pixels)  # everything is above 0
    hole = np.asarray(OPERATIONS["hole"](Image.new("RGB", (200, 200)), 1.0)).any(axis=2)
    assert 100 <= hole.sum() <= 400  # 20 x 20, less what sticks out


def test_shear_is_the_affine_map_of_an_independent_library(image: Image.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelwise.loading.randaugment._signed", lambda most, strength: most * strength)
    sheared = np.asarray(OPERATIONS["shear-x"](image, 1.0))[:, :, 1].astype(float)
    matrix = np.array([[1, 0.3, 0], [0, 1, 0], [0, 0, 1]])
    expected = warp(
        np.asarray(image)[:, :, 1].astype(float),
        AffineTransform(matrix),
        order=3,
    )
    inside = np.s_[5:35, 5:40]
    assert np.abs(sheared - expected)[inside].max() < 4  # half a pixel of a ramp of 4 an x


def test_the_same_seed_gives_the_same_image(image: Image.Image) -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(7)
        drawn.append([np.asarray(UniformRandAugment()(image)) for _ in range(5)])
    assert all(np.array_equal(a, b) for a, b in zip(*drawn, strict=True))


def test_as_a_recipe_names_it(image: Image.Image) -> None:
    """Query2Label's and ML-Decoder's codes: a hole of a random colour, then this policy."""
    augmentation = AugmentationConfig(flip=0, cutout=0.5, cutout_fill="random", policy="randaugment-uniform")
    transform = train_transform(Preprocessing(size=16, mean=(0, 0, 0), std=(1, 1, 1)), augmentation)
    torch.manual_seed(0)
    assert len({transform(image).numpy().tobytes() for _ in range(8)}) == 8
    white = Image.new("RGB", (100, 100), (255, 255, 255))
    colours = {tuple(np.asarray(Cutout(0.5, "random")(white)).min(axis=(0, 1))) for _ in range(8)}
    assert len(colours) == 8
