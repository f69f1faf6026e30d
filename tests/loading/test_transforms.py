from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from timm.data import create_transform
from torchvision.transforms import v2

from labelwise.core.errors import LabelwiseError
from labelwise.data.preprocessing import Preprocessing
from labelwise.loading.augment import AugmentationConfig, Cutout, batch_mix, eval_transform, train_transform

PLAIN = AugmentationConfig(flip=0, cutout=0, policy="none")


def picture(width: int = 60, height: int = 40) -> Image.Image:
    """A red left half, a blue right half, and a green line along the top and the bottom."""
    values = np.zeros((height, width, 3), np.uint8)
    values[:, : width // 2] = (255, 0, 0)
    values[:, width // 2 :] = (0, 0, 255)
    values[:4] = values[-4:] = (0, 255, 0)
    return Image.fromarray(values)


def test_squash_keeps_everything() -> None:
    result = eval_transform(Preprocessing(size=20))(picture())
    assert result.shape == (3, 20, 20)
    assert result.dtype == torch.float32
    assert result[:, 10, 0].tolist() == [1, 0, 0]
    assert result[:, 10, 19].tolist() == [0, 0, 1]
    assert result[:, 0, 5].tolist() == [0, 1, 0]


def test_squash_equals_pillow() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (41, 67, 3), dtype=np.uint8))
    for name, mode in (("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)):
        expected = np.asarray(noise.resize((32, 32), mode), np.float32) / 255
        result = eval_transform(Preprocessing(size=32, interpolation=name))(noise)  # type: ignore[arg-type]
        np.testing.assert_allclose(result.permute(1, 2, 0).numpy(), expected, atol=1e-7)


def test_crop_takes_the_centre() -> None:
    result = eval_transform(Preprocessing(size=40, resize="crop"))(picture())  # 60x40: columns 10 to 50 stay
    expected = torch.from_numpy(np.array(picture())[:, 10:50]).permute(2, 0, 1) / 255
    torch.testing.assert_close(result, expected)


def test_pad_keeps_the_shape() -> None:
    result = eval_transform(Preprocessing(size=60, resize="pad"))(picture())  # bars of 10 rows
    torch.testing.assert_close(result[:, 10:50], torch.from_numpy(np.array(picture())).permute(2, 0, 1) / 255)
    assert torch.allclose(result[:, :10], torch.tensor(128 / 255))
    assert torch.allclose(result[:, 50:], result[:, :10])
    tall = eval_transform(Preprocessing(size=30, resize="pad"))(picture(40, 80))
    assert tall.shape == (3, 30, 30)


def test_normalisation() -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    plain = eval_transform(Preprocessing(size=16))(picture())
    normal = eval_transform(Preprocessing(size=16, mean=mean, std=std))(picture())
    torch.testing.assert_close(normal, (plain - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None])


def test_no_augmentation_is_the_eval_transform() -> None:
    for resize in ("squash", "crop", "pad"):
        preprocessing = Preprocessing(size=24, resize=resize)  # type: ignore[arg-type]
        torch.testing.assert_close(
            train_transform(preprocessing, PLAIN)(picture()), eval_transform(preprocessing)(picture())
        )


def test_flip_happens_as_often_as_asked() -> None:
    torch.manual_seed(0)
    transform = train_transform(Preprocessing(size=16), PLAIN.model_copy(update={"flip": 0.25}))
    flipped = sum(bool(transform(picture())[2, 8, 0] == 1) for _ in range(400))  # blue came to the left
    assert 75 <= flipped <= 125


def test_random_crop_keeps_at_least_its_share() -> None:
    ramp = Image.fromarray(np.tile(np.arange(200, dtype=np.uint8)[:, None, None], (1, 200, 3)))
    transform = train_transform(Preprocessing(size=32), PLAIN.model_copy(update={"crop": 0.25}))
    assert transform.min_side == 64  # a quarter of 64 x 64 still holds 32 x 32
    torch.manual_seed(0)
    heights = [float(image[0].max() - image[0].min()) * 255 for image in (transform(ramp) for _ in range(200))]
    assert min(heights) >= 200 * np.sqrt(0.25 * 3 / 4) - 8  # at the flattest allowed shape, 4:3
    assert max(heights) - min(heights) > 60


def test_cutout_is_one_grey_square_of_half_the_side() -> None:
    torch.manual_seed(0)
    white = Image.new("RGB", (40, 40), "white")
    areas = []
    for _ in range(300):
        hole = np.asarray(Cutout(0.5)(white))[..., 0] == 128
        rows, columns = np.flatnonzero(hole.any(1)), np.flatnonzero(hole.any(0))
        assert hole.sum() == len(rows) * len(columns)  # a rectangle without gaps
        assert np.ptp(rows) + 1 <= 20
        assert np.ptp(columns) + 1 <= 20
        areas.append(hole.sum())
    assert max(areas) == 400
    assert min(areas) < 200
    assert np.asarray(white).min() == 255  # the picture that was handed in is untouched


@pytest.mark.parametrize("policy", ["randaugment", "autoaugment"])
def test_policies_vary_the_picture_and_are_reproducible(policy: str) -> None:
    augmentation = AugmentationConfig(policy=policy, crop=0.5, colour_jitter=0.4)  # type: ignore[arg-type]
    transform = train_transform(Preprocessing(size=32), augmentation)

    def run(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.stack([transform(picture()) for _ in range(8)])

    first = run(0)
    torch.testing.assert_close(run(0), first, rtol=0, atol=0)
    assert not torch.equal(run(1), first)
    assert len({tuple(image.flatten().tolist()) for image in first}) == 8
    assert first.min() >= 0
    assert first.max() <= 1


def test_unknown_options_are_refused() -> None:
    with pytest.raises(LabelwiseError, match="cutut"):
        AugmentationConfig.parse({"cutut": 0.5}, "augmentation")
    with pytest.raises(LabelwiseError, match="cutout"):
        AugmentationConfig.parse({"cutout": 1.5}, "augmentation")


# ---- mixing


def test_nothing_to_mix() -> None:
    assert batch_mix() is None


def test_mixup_equals_torchvisions() -> None:
    images, targets = torch.rand(6, 3, 8, 8), torch.randint(0, 2, (6, 5), dtype=torch.int8)
    mix = batch_mix(mixup=0.8)
    assert mix is not None
    torch.manual_seed(3)
    mixed_images, mixed = mix(images, targets)
    torch.manual_seed(3)
    v2.RandomChoice([v2.Identity()])(images)  # uses up the draw that chooses between MixUp and CutMix
    expected_images, expected = v2.MixUp(alpha=0.8)(images, targets.float())
    torch.testing.assert_close(mixed_images, expected_images)
    torch.testing.assert_close(mixed, expected)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), batch=st.integers(1, 6), kind=st.sampled_from(["mixup", "cutmix", "both"]))
def test_mixed_targets_follow_the_pictures(seed: int, batch: int, kind: str) -> None:
    """Each picture is filled with its own number, so the share of each source can be read from the mixed pixels."""
    torch.manual_seed(seed)
    images = torch.eye(batch)[:, :, None, None].expand(-1, -1, 10, 10).clone()  # channel c of picture i is (c == i)
    targets = torch.randint(-1, 2, (batch, 7), dtype=torch.int8)
    mix = batch_mix(mixup=1.0 if kind != "cutmix" else 0, cutmix=1.0 if kind != "mixup" else 0)
    assert mix is not None
    mixed_images, mixed = mix(images, targets)
    shares = mixed_images.mean((2, 3))  # [B, B]: how much of picture j is in mixture i
    torch.testing.assert_close(shares.sum(1), torch.ones(batch))
    for i in range(batch):
        sources = shares[i] > 0  # a share may be as small as 1e-7
        unknown = (targets[sources] < 0).any(0)
        assert (mixed[i][unknown] == -1).all()
        expected = (shares[i][:, None] * targets.clamp(min=0)).sum(0)
        torch.testing.assert_close(mixed[i][~unknown], expected[~unknown], atol=1e-5, rtol=0)


def test_both_kinds_are_drawn_and_a_seed_repeats_them() -> None:
    images, targets = torch.eye(4)[:, :, None, None].expand(-1, -1, 10, 10).clone(), torch.eye(4, dtype=torch.int8)
    mix = batch_mix(mixup=1.0, cutmix=1.0)
    assert mix is not None

    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [mix(images, targets)[0] for _ in range(20)]

    first = run()
    assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))
    pasted = [bool(((mixed == 0) | (mixed == 1)).all()) for mixed in first]  # CutMix leaves pure pixels
    assert any(pasted)
    assert not all(pasted)


def test_crop_ratio_is_timms_test_crop() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (150, 190, 3), dtype=np.uint8))
    ours = eval_transform(Preprocessing(size=96, interpolation="bicubic", resize="crop", crop_ratio=0.95))
    theirs = create_transform(96, crop_pct=0.95, interpolation="bicubic", mean=(0, 0, 0), std=(1, 1, 1))
    torch.testing.assert_close(ours(noise), theirs(noise))
    assert ours.min_side == 101  # what the decoder has to deliver
    with pytest.raises(LabelwiseError, match=r"crop_ratio=0.9 needs resize=crop, not squash"):
        Preprocessing.parse({"crop_ratio": 0.9}, "preprocessing")


def test_timms_randaugment_draws_from_torchs_generator() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    changes = {"policy": "randaugment-timm", "strength": 7, "strength_spread": 0.5}
    transform = train_transform(Preprocessing(size=32), PLAIN.model_copy(update=changes))

    def varied(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return transform(noise)

    states = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[call-overload]
    pictures = [varied(seed) for seed in range(12)]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states  # type: ignore[call-overload]
    assert all(torch.equal(picture, varied(seed)) for seed, picture in enumerate(pictures))
    assert len({picture.numpy().tobytes() for picture in pictures}) > 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "randaugment-timm", "strength": 12}, "it goes to 10"),
        ({"policy": "randaugment", "strength_spread": 0.5}, "needs policy=randaugment-timm"),
    ],
)
def test_strengths_out_of_range(changes: dict[str, object], message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        AugmentationConfig.parse(changes, "augmentation")


def test_random_erasing_puts_noise_over_one_rectangle() -> None:
    grey = Image.new("RGB", (64, 64), (128, 128, 128))
    preprocessing = Preprocessing(size=64, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    plain = eval_transform(preprocessing)(grey)
    transform = train_transform(preprocessing, PLAIN.model_copy(update={"erasing": 0.5}))
    erased, noise = [], []
    for seed in range(200):
        torch.manual_seed(seed)
        changed = transform(grey) != plain  # [3, 64, 64]
        rows, columns = changed.any(dim=(0, 2)).nonzero(), changed.any(dim=(0, 1)).nonzero()
        if len(rows):
            assert changed[:, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
            erased.append(changed.float().mean().item())
            torch.manual_seed(seed)
            noise.append(transform(grey)[changed])
    assert 70 < len(erased) < 130
    assert min(erased) > 0.015
    assert max(erased) < 0.34
    assert torch.cat(noise).std().item() == pytest.approx(1.0, abs=0.05)
