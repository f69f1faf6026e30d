from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from labelwise.core.errors import LabelwiseError
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.table import LabelTable
from labelwise.loading.augment import AugmentationConfig, eval_transform, train_transform
from labelwise.loading.dataset import BadImage, ImageDataset, ImageLoader, Sample

EVAL = eval_transform(Preprocessing(size=8))


@pytest.fixture
def table(tmp_path: Path) -> LabelTable:
    """Ten pictures, each of one grey value of its own; 3 and 7 are broken."""
    images = []
    for i in range(10):
        images.append(str(tmp_path / f"{i}.png"))
        Image.new("RGB", (12, 10), (i * 20,) * 3).save(images[-1])
    Path(images[3]).write_bytes(Path(images[3]).read_bytes()[:48])
    Path(images[7]).write_bytes(b"")
    targets = np.random.default_rng(0).integers(-1, 2, (10, 4))
    return LabelTable.from_dense(images, targets, ["a", "b", "c", "d"], source="photos")


def test_one_sample(table: LabelTable) -> None:
    sample = ImageDataset(table, EVAL)[2]
    assert isinstance(sample, Sample)
    image, target, row = sample
    torch.testing.assert_close(image, torch.full((3, 8, 8), 40 / 255))
    assert target.dtype == torch.int8
    assert target.tolist() == table.target(2).tolist()
    assert row == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_skip_drops_counts_and_names_them(table: LabelTable, workers: int) -> None:
    dataset = ImageDataset(table, EVAL, on_bad_image="skip")
    loader = ImageLoader(dataset, batch_size=4, num_workers=workers)
    for _ in range(2):  # a second pass meets the same ones and must not count them twice
        batches = list(loader)
        assert [batch.rows.tolist() for batch in batches] == [[0, 1, 2], [4, 5, 6], [8, 9]]
        for batch in batches:
            np.testing.assert_array_equal(batch.targets.numpy(), table.targets(batch.rows.numpy()))
            torch.testing.assert_close(batch.images[:, 0, 0, 0], batch.rows * 20 / 255)
        assert dataset.bad_images == [
            BadImage(3, table.images[3], "truncated file"),
            BadImage(7, table.images[7], "empty file"),
        ]


@pytest.mark.parametrize("workers", [0, 2])
def test_error_is_one_line_with_the_path_and_the_fix(table: LabelTable, workers: int) -> None:
    loader = ImageLoader(ImageDataset(table, EVAL), batch_size=4, num_workers=workers)
    with pytest.raises(LabelwiseError) as caught:
        list(loader)
    assert str(caught.value) == (
        f"photos: image {table.images[3]!r} cannot be decoded (truncated file); fix it, or skip bad images "
        "(on_bad_image='skip')"
    )


def test_error_names_the_row_of_a_manifest(table: LabelTable) -> None:
    numbered = replace(table, source="photos.csv", lines=np.arange(2, 12))
    with pytest.raises(LabelwiseError, match=r"^photos\.csv row 5: image '.*3\.png' cannot be decoded"):
        ImageDataset(numbered, EVAL)[3]


def test_a_batch_of_only_broken_pictures_is_left_out(table: LabelTable) -> None:
    dataset = ImageDataset(table.select([3, 7, 0]), EVAL, on_bad_image="skip")
    assert [batch.rows.tolist() for batch in ImageLoader(dataset, batch_size=2)] == [[2]]
    assert len(dataset.bad_images) == 2


def test_augmentation_depends_on_seed_epoch_and_row_only(table: LabelTable) -> None:
    transform = train_transform(Preprocessing(size=16), AugmentationConfig())
    good = table.select([0, 1, 2, 4, 5, 6])

    def epoch(number: int, seed: int = 0, **options: object) -> torch.Tensor:
        dataset = ImageDataset(good, transform, seed=seed)
        dataset.set_epoch(number)
        batches = list(ImageLoader(dataset, **options))
        order = torch.cat([batch.rows for batch in batches]).argsort()
        return torch.cat([batch.images for batch in batches])[order]

    first = epoch(0, batch_size=6)
    state = torch.get_rng_state()
    assert torch.equal(epoch(0, batch_size=2, num_workers=2), first)
    assert torch.equal(epoch(0, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1)), first)
    assert not torch.equal(epoch(1, batch_size=6), first)
    assert not torch.equal(epoch(0, seed=1, batch_size=6), first)
    dataset = ImageDataset(good, transform, seed=0)
    torch.set_rng_state(state)
    dataset[0]
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's random numbers change


def test_persistent_workers_see_the_epoch(table: LabelTable) -> None:
    dataset = ImageDataset(
        table.select([0, 1, 2, 4]), train_transform(Preprocessing(size=16), AugmentationConfig()), seed=0
    )
    loader = ImageLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
    passes = []
    for number in (0, 1, 0):
        dataset.set_epoch(number)
        passes.append(next(iter(list(loader))).images)
    assert torch.equal(passes[0], passes[2])
    assert not torch.equal(passes[0], passes[1])


def test_copies_of_a_row_are_varied_anew(table: LabelTable) -> None:
    edges = Image.new("RGB", (12, 10))
    edges.paste((255, 255, 255), (0, 0, 5, 10))
    edges.save(table.images[0])
    crops = train_transform(Preprocessing(size=8), AugmentationConfig(flip=0, crop=0.2, cutout=0, policy="none"))
    dataset = ImageDataset(table, crops, on_bad_image="skip", seed=1, copies=3)
    samples = [dataset[number] for number in (0, 10, 20)]
    assert [sample.row for sample in samples] == [0, 0, 0]
    assert len({sample.image.numpy().tobytes() for sample in samples if isinstance(sample, Sample)}) == 3
    alone = ImageDataset(table, crops, on_bad_image="skip", seed=1)[0]
    assert isinstance(alone, Sample)
    assert isinstance(samples[0], Sample)
    assert torch.equal(samples[0].image, alone.image)  # the first copy is what there is without
    with pytest.raises(IndexError):
        dataset[30]
