"""The evaluation preprocessing against torchvision's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torchvision.transforms import v2

from labelwise.data.preprocessing import InputTransform, Preprocessing, fit_square
from labelwise.loading.augment import eval_transform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def torchvision(preprocessing: Preprocessing) -> v2.Compose:
    size, mode = preprocessing.size, v2.InterpolationMode(preprocessing.interpolation)
    steps: list[nn.Module] = [v2.Resize((size, size), interpolation=mode)]
    if preprocessing.resize == "crop":
        steps = [v2.Resize(preprocessing.shorter_side, interpolation=mode), v2.CenterCrop(size)]
    if preprocessing.resize == "pad":
        steps = [v2.Resize(None, max_size=size, interpolation=mode)]
    return v2.Compose(
        [
            *steps,
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(preprocessing.mean, preprocessing.std),
        ]
    )


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


@settings(deadline=None, max_examples=40)
@given(
    st.integers(9, 90), st.integers(9, 90), st.integers(8, 70), st.sampled_from(["bilinear", "bicubic"]), st.booleans()
)
def test_squash_and_crop_are_torchvisions_to_the_last_bit(
    width: int, height: int, size: int, interpolation: str, crop: bool
) -> None:
    ways = {"resize": "crop", "crop_ratio": 0.875} if crop else {"resize": "squash"}
    expects = Preprocessing.parse(
        {"size": size, "mean": MEAN, "std": STD, "interpolation": interpolation, **ways}, "test"
    )
    picture = noise(width, height)
    expected = torchvision(expects)(picture).numpy()
    found = InputTransform(expects)(picture)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(eval_transform(expects)(picture).numpy(), expected)


@pytest.mark.parametrize(("width", "height"), [(60, 40), (31, 77), (50, 50)])
def test_pad_is_torchvisions_between_grey_bars(width: int, height: int) -> None:
    expects = Preprocessing(size=32, mean=MEAN, std=STD, resize="pad")
    inner = torchvision(expects)(noise(width, height)).numpy()  # [3, h, w]
    found = InputTransform(expects)(noise(width, height))
    top, left = (32 - inner.shape[1]) // 2, (32 - inner.shape[2]) // 2
    np.testing.assert_array_equal(found[:, top : top + inner.shape[1], left : left + inner.shape[2]], inner)
    bars = np.ones((32, 32), bool)
    bars[top : top + inner.shape[1], left : left + inner.shape[2]] = False
    grey = (np.float32(128 / 255) - np.float32(MEAN)) / np.float32(STD)
    assert np.allclose(found[:, bars], grey[:, None], atol=1e-6)


def test_a_strip_of_pixels_is_not_enlarged_as_a_whole() -> None:
    """1 x 40,000 pixels would become 224 x 8,960,000."""
    strip = Image.new("RGB", (40_000, 1), (0, 0, 255))
    strip.paste((255, 0, 0), (19_990, 0, 20_010, 1))
    transform = InputTransform(Preprocessing(size=224, resize="crop"))
    for picture in (strip, strip.transpose(Image.Transpose.ROTATE_90)):
        np.testing.assert_array_equal(transform(picture), transform(Image.new("RGB", (1, 1), (255, 0, 0))))


def test_a_line_of_pixels_can_be_padded() -> None:
    assert fit_square(noise(500, 1), Preprocessing(size=32, resize="pad")).size == (32, 32)
