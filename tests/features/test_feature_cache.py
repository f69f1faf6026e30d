"""What the cache gives, and what it computes again. Every test counts the pictures that went through the backbone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from labelwise.backbones import Backbone, BackboneConfig
from labelwise.core.errors import LabelwiseError
from labelwise.data.images import BadImage, load_image
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.sample import make_sample
from labelwise.data.table import LabelTable
from labelwise.features import FeatureCache, default_folder
from labelwise.loading.augment import eval_transform
from labelwise.model.network import evaluating

IMAGES = 10
PICTURES = Preprocessing(size=64, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
HALF = {"rtol": 1.01 * 2**-11, "atol": 1e-6}  # float16 has 11 bits; a little more for another order of summation


@pytest.fixture
def table(tmp_path: Path) -> LabelTable:
    return make_sample(tmp_path / "sample", images=IMAGES, size=64)


@pytest.fixture
def backbone() -> Backbone:
    return Backbone(BackboneConfig(name="test_resnet", size=64))


@pytest.fixture
def build(backbone: Backbone, tmp_path: Path) -> Callable[..., tuple[FeatureCache, int]]:
    """Builds a cache and tells how many pictures the backbone has seen for it."""
    seen = 0

    def count(_: nn.Module, inputs: tuple[Tensor]) -> None:
        nonlocal seen
        assert torch.is_inference_mode_enabled()
        seen += int(inputs[0].flatten(1).any(dim=1).sum())  # batches are filled up with zeros

    def run(table: LabelTable, module: nn.Module = backbone, **options: object) -> tuple[FeatureCache, int]:
        nonlocal seen
        seen = 0
        hook = module.register_forward_pre_hook(count)
        defaults = {"folder": tmp_path / "cache", "batch_size": 4, "workers": 0, "progress": False}
        try:
            return FeatureCache.build(table, module, **{"preprocessing": PICTURES, **defaults, **options}), seen
        finally:
            hook.remove()

    return run


Build = Callable[..., tuple[FeatureCache, int]]


def direct(backbone: nn.Module, table: LabelTable, rows: list[int], mirrored: bool = False) -> Tensor:
    """The backbone's own output, without anything of the cache."""
    backbone.eval()
    pictures = [load_image(table.images[row]) for row in rows]
    if mirrored:
        pictures = [ImageOps.mirror(picture) for picture in pictures]
    with torch.no_grad():
        return backbone(torch.stack([eval_transform(PICTURES)(picture) for picture in pictures]))


@pytest.mark.parametrize("workers", [0, 2])
def test_features_are_the_backbones_output(build: Build, table: LabelTable, backbone: Backbone, workers: int) -> None:
    cache, seen = build(table, workers=workers)
    assert seen == 2 * IMAGES
    assert cache.rows.tolist() == list(range(IMAGES))
    assert cache.bad_images == []
    assert cache.shape == (96, 2, 2)
    rows = [7, 0, 7, 9]
    got = cache.batch(np.array(rows))
    assert got.dtype == torch.float32
    assert got.flatten(2).transpose(1, 2).is_contiguous()  # tokens without a copy
    torch.testing.assert_close(got, direct(backbone, table, rows), **HALF)
    torch.testing.assert_close(cache.batch(torch.tensor(rows), True), direct(backbone, table, rows, True), **HALF)
    some = cache.batch(torch.tensor(rows), torch.tensor([True, False, False, True]))
    torch.testing.assert_close(some[[0, 3]], direct(backbone, table, [7, 9], True), **HALF)
    torch.testing.assert_close(some[[1, 2]], direct(backbone, table, [0, 7]), **HALF)
    assert not torch.equal(some[0], some[2])  # the same picture, mirrored and not


def test_a_second_build_computes_nothing_and_gives_the_same(build: Build, table: LabelTable) -> None:
    first, _ = build(table)
    second, seen = build(table)
    assert seen == 0
    assert torch.equal(first.batch(first.rows, True), second.batch(second.rows, True))


def test_mirrored_maps_are_added_to_a_cache_without(build: Build, table: LabelTable) -> None:
    plain, seen = build(table, flips=False)
    assert seen == IMAGES
    with pytest.raises(ValueError, match="flips=True"):
        plain.batch(np.array([0]), True)
    both, seen = build(table, flips=True)
    assert seen == IMAGES
    assert torch.equal(plain.batch(plain.rows), both.batch(both.rows))


def test_what_a_map_is_does_not_depend_on_its_neighbours(build: Build, table: LabelTable, tmp_path: Path) -> None:
    """Bit for bit, so that a build that was interrupted and one that was not train the same head."""
    whole, _ = build(table)
    build(table.select([1, 2, 8]), folder=tmp_path / "other")
    pieces, seen = build(table, folder=tmp_path / "other")
    assert seen == 2 * (IMAGES - 3)
    for flip in (False, True):
        assert torch.equal(whole.batch(whole.rows, flip), pieces.batch(pieces.rows, flip))


def test_splits_share_a_store_and_rows_are_those_of_their_table(build: Build, table: LabelTable) -> None:
    whole, _ = build(table)
    test = table.select("test")
    part, seen = build(test)
    assert seen == 0
    assert torch.equal(part.batch(np.arange(len(test))), whole.batch(table.rows("test")))


def test_a_changed_picture_is_computed_again(build: Build, table: LabelTable, backbone: Backbone) -> None:
    before, _ = build(table)
    Image.new("RGB", (64, 64), (200, 30, 30)).save(table.images[3], "JPEG")
    after, seen = build(table)
    assert seen == 2
    torch.testing.assert_close(after.batch(np.array([3])), direct(backbone, table, [3]), **HALF)
    assert not torch.equal(after.batch(np.array([3])), before.batch(np.array([3])))
    others = np.delete(after.rows, 3)
    assert torch.equal(after.batch(others), before.batch(others))


def test_a_renamed_picture_is_not(build: Build, table: LabelTable, tmp_path: Path) -> None:
    before, _ = build(table)
    images = list(table.images)
    images[3] = shutil.move(images[3], tmp_path / "elsewhere.jpeg")
    after, seen = build(replace(table, images=list(map(str, images))))
    assert seen == 0
    assert torch.equal(after.batch(after.rows), before.batch(before.rows))


def test_equal_pictures_are_computed_once(build: Build, table: LabelTable) -> None:
    shutil.copy(table.images[2], table.images[5])
    cache, seen = build(table)
    assert seen == 2 * (IMAGES - 1)
    assert torch.equal(cache.batch(np.array([2])), cache.batch(np.array([5])))


def test_other_weights_and_preprocessing_have_stores_of_their_own(
    build: Build, table: LabelTable, backbone: Backbone, tmp_path: Path
) -> None:
    few = table.select([0, 1])
    build(few)
    assert build(few, preprocessing=PICTURES.model_copy(update={"resize": "pad"}))[1] == 4
    with torch.no_grad():
        next(backbone.parameters())[0, 0, 0, 0] += 1e-6
    assert build(few)[1] == 4
    next(backbone.buffers()).add_(1)  # the statistics of a batch norm
    assert build(few)[1] == 4
    assert len(list((tmp_path / "cache").iterdir())) == 4


def test_modes_are_as_before(build: Build, table: LabelTable, backbone: Backbone) -> None:
    backbone.train()
    batch_norms = [module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    batch_norms[0].eval()
    statistics = batch_norms[1].running_mean.clone()
    build(table.select([0]))
    assert backbone.training
    assert [norm.training for norm in batch_norms] == [False] + [True] * (len(batch_norms) - 1)
    assert torch.equal(statistics, batch_norms[1].running_mean)  # it was in evaluation mode meanwhile


# ---- pictures that cannot be used


def test_bad_pictures_are_left_out(build: Build, table: LabelTable) -> None:
    Path(table.images[1]).write_bytes(Path(table.images[1]).read_bytes()[:600])
    for copy in (4, 5, 6, 7, 8):  # more copies of one bad file than there are rounds
        Path(table.images[copy]).write_bytes(b"no picture")
    Path(table.images[9]).unlink()
    for expected in (2 * 3, 0):
        cache, seen = build(table, on_bad_image="skip")
        assert seen == expected
        assert cache.rows.tolist() == [0, 2, 3]
        assert cache.bad_images == [
            BadImage(1, table.images[1], "truncated file"),
            *[BadImage(row, table.images[row], "not an image of a known format") for row in (4, 5, 6, 7, 8)],
            BadImage(9, table.images[9], "no such file"),
        ]
    with pytest.raises(ValueError, match="row 4 has no features"):
        cache.batch(np.array([0, 4]))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_picture_is_an_error_and_the_finished_ones_are_kept(
    build: Build, table: LabelTable, workers: int
) -> None:
    good = Path(table.images[9]).read_bytes()
    Path(table.images[9]).write_bytes(b"no picture")
    with pytest.raises(LabelwiseError, match=r"00009.jpg' cannot be decoded .*on_bad_image='skip'"):
        build(table, workers=workers)
    Path(table.images[9]).write_bytes(good)
    assert build(table)[1] == 2 * 2  # rows 8 and 9: the last batch


def test_no_picture_at_all(build: Build, table: LabelTable) -> None:
    table = table.select([0])
    Path(table.images[0]).write_bytes(b"")
    with pytest.raises(LabelwiseError, match="none of its images can be decoded"):
        build(table, on_bad_image="skip")


def test_a_picture_that_changes_during_the_build(
    build: Build, table: LabelTable, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listed with one content, decoded with another: the map must not be stored under the first."""
    old = Path(table.images[0]).read_bytes()

    def change_it(module: nn.Module) -> AbstractContextManager[None]:  # called between listing and decoding
        Image.new("RGB", (64, 64), (200, 30, 30)).save(table.images[0], "JPEG")
        return evaluating(module)

    monkeypatch.setattr("labelwise.features.cache.evaluating", change_it)
    cache, _ = build(table)
    torch.testing.assert_close(cache.batch(np.array([0])), direct(backbone, table, [0]), **HALF)
    monkeypatch.undo()
    Path(table.images[0]).write_bytes(old)
    cache, seen = build(table)
    assert seen == 2
    torch.testing.assert_close(cache.batch(np.array([0])), direct(backbone, table, [0]), **HALF)


# ---- numbers that do not fit


class Scaled(nn.Module):
    """The picture itself, smaller and times `scale`, as the map."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, images: Tensor) -> Tensor:
        return (nn.functional.avg_pool2d(images, 8) * self.scale).contiguous()  # not channels last, as some backbones


def test_values_beyond_float16_are_kept_in_float32(build: Build, tmp_path: Path) -> None:
    """White and grey pictures: only the maps of the white ones leave the range."""
    paths = [str(tmp_path / f"{grey}.png") for grey in (255, 130, 250, 128)]
    for path in paths:
        Image.new("RGB", (64, 64), (int(Path(path).stem),) * 3).save(path)
    table = LabelTable.from_lists(paths, [[]] * 4, ["x"])
    module = Scaled(70000.0)
    cache, _ = build(table, module)
    values = cache.batch(cache.rows)[:, 0, 0, 0]
    expected = (torch.tensor([255, 130, 250, 128]) / 255 - 0.5) / 0.5 * 70000
    assert expected[2] > 65504 > expected[1]
    torch.testing.assert_close(values[[0, 2]], expected[[0, 2]], rtol=1e-6, atol=0)
    torch.testing.assert_close(values[[1, 3]], expected[[1, 3]], rtol=2**-11, atol=0)
    kinds = {(*shard.shape, shard.dtype) for shard in cache._maps}
    assert kinds == {(4, 192, torch.float16), (4, 192, torch.float32)}  # two pictures, twice, each


def test_nan_is_refused(build: Build, table: LabelTable) -> None:
    with pytest.raises(LabelwiseError, match=r"NaN or infinity for image .*00000.jpg"):
        build(table, Scaled(float("inf")))


def test_a_backbone_without_maps_is_refused(build: Build, table: LabelTable) -> None:
    with pytest.raises(LabelwiseError, match="not maps"):
        build(table, nn.Sequential(Scaled(1.0), nn.Flatten()))


def test_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABELWISE_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_folder() == Path("/home/somebody/.cache/labelwise/features")
    monkeypatch.setenv("LABELWISE_CACHE", "/scratch/lw")
    assert default_folder() == Path("/scratch/lw/features")
