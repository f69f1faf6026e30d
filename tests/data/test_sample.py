from __future__ import annotations

import time
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelwise.core.errors import LabelwiseError
from labelwise.data import sample
from labelwise.data.sample import SAMPLE_LABELS, Scene, draw_scene, make_sample
from labelwise.data.sources import open_data


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [draw_scene(number, size=64) for number in range(300)]


@pytest.fixture(scope="module")
def presence(scenes: list[Scene]) -> np.ndarray:
    """Which labels are in them, [300, N]."""
    return np.array([[name in scene.boxes for name in SAMPLE_LABELS] for scene in scenes])


def column(presence: np.ndarray, name: str) -> np.ndarray:
    return presence[:, SAMPLE_LABELS.index(name)]


def test_files_and_table_agree(tmp_path: Path) -> None:
    table = make_sample(tmp_path / "set", images=120, size=48)
    assert table.labels == SAMPLE_LABELS
    assert {name: len(table.rows(name)) for name in table.split_names} == {"train": 84, "val": 12, "test": 24}
    for where in (tmp_path / "set", tmp_path / "set" / "labels.csv"):
        read = open_data(where)
        assert read.labels == table.labels
        np.testing.assert_array_equal(read.targets(), table.targets())
        assert list(read.splits) == list(table.splits)
        assert [Path(image).resolve() for image in read.images] == [Path(image).resolve() for image in table.images]
    with Image.open(table.images[0]) as image:
        assert (image.format, image.size, image.mode) == ("JPEG", (48, 48), "RGB")


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    def files(folder: str, **options: int) -> dict[str, bytes]:
        make_sample(tmp_path / folder, size=48, **options)
        root = tmp_path / folder
        return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}

    first = files("a", images=12)
    assert len(first) == 13
    assert files("b", images=12) == first
    longer = files("c", images=16)  # a larger set starts with the same pictures
    assert all(longer[name] == content for name, content in first.items() if name.endswith(".jpg"))
    other = files("d", images=12, seed=1)
    assert all(other[name] != content for name, content in first.items())


def test_a_thousand_take_seconds() -> None:
    start = time.process_time()
    for number in range(50):
        draw_scene(number)
    assert (time.process_time() - start) / 50 < 0.03  # 0.008 s when measured: 1,000 in 8 s


def test_labels_go_together_and_exclude_each_other(presence: np.ndarray) -> None:
    share = presence.mean(0)
    assert share.min() > 0.08
    assert share.max() < 0.8
    assert 3 < presence.sum(1).mean() < 5

    def lift(a: str, b: str) -> float:
        both = column(presence, a) & column(presence, b)
        return float(both.mean() / column(presence, a).mean() / column(presence, b).mean())

    assert not (column(presence, "sun") & (column(presence, "moon") | column(presence, "stars"))).any()
    assert lift("moon", "stars") > 2
    assert lift("umbrella", "rain") > 1.5
    assert lift("boat", "fish") > 1.5
    assert not (column(presence, "boat") & column(presence, "house")).any()
    # ... but no label follows from another one alone, except rain, which comes with a cloud.
    for a, b in combinations(SAMPLE_LABELS, 2):
        assert {a, b} == {"rain", "cloud"} or (column(presence, a) != column(presence, b)).mean() > 0.05
    dry_umbrella = column(presence, "umbrella") & ~column(presence, "rain")
    assert dry_umbrella.sum() >= 5


def test_boxes_hold_the_things_they_name() -> None:
    """The sun is the brightest warm spot: its box must hold yellow pixels, and the picture elsewhere hardly any."""
    checked = 0
    for number in range(80):
        scene = draw_scene(number)
        size = scene.image.width
        for left, top, right, bottom in scene.boxes.values():
            assert 0 <= left < right <= size
            assert 0 <= top < bottom <= size
        if "sun" not in scene.boxes:
            continue
        pixels = np.asarray(scene.image, np.int32)
        yellow = (pixels[..., 0] > 200) & (pixels[..., 0] - pixels[..., 2] > 90) & (pixels[..., 1] > 120)
        left, top, right, bottom = scene.boxes["sun"]
        inside = yellow[top:bottom, left:right].mean()
        assert inside > 0.15, number
        checked += 1
    assert checked > 10


def test_things_are_small_enough_for_where_to_matter() -> None:
    shares = [
        (right - left) * (bottom - top) / 160**2
        for number in range(60)
        for name, (left, top, right, bottom) in draw_scene(number).boxes.items()
        if name in ("sun", "moon", "person", "umbrella", "house")
    ]
    assert np.median(shares) < 0.05


def test_colour_statistics_are_not_enough(scenes: list[Scene], presence: np.ndarray) -> None:
    """A linear probe on global colour histograms must be better than chance but far from perfect."""
    pixels = [np.asarray(scene.image) for scene in scenes]
    features = np.array(
        [np.concatenate([np.histogram(image[..., c], 16, (0, 256))[0] for c in range(3)]) / 4096 for image in pixels]
    )
    train, test = slice(0, 200), slice(200, 300)
    # Ridge regression in closed form: (X'X + a I) w = X'y
    weights = np.linalg.solve(
        features[train].T @ features[train] + 0.01 * np.eye(48),
        features[train].T @ (presence[train] - presence[train].mean(0)),
    )
    ranked = np.take_along_axis(presence[test], np.argsort(-(features[test] @ weights), axis=0), axis=0)  # best first
    precision = ranked.cumsum(0) / np.arange(1, 101)[:, None]
    score = ((precision * ranked).sum(0) / ranked.sum(0)).mean()  # mAP
    assert presence.mean() + 0.05 < score < 0.8


def test_refused() -> None:
    with pytest.raises(LabelwiseError, match="at least 1 image"):
        make_sample("nowhere", images=0)


def test_an_interruption_leaves_nothing_and_other_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(number: int, size: int, seed: int) -> Scene:
        if number == 2:
            raise KeyboardInterrupt
        return draw_scene(number, size, seed)

    with monkeypatch.context() as patch:
        patch.setattr(sample, "draw_scene", stopped)
        with pytest.raises(KeyboardInterrupt):
            make_sample(tmp_path, images=4, size=32)
    assert list(tmp_path.iterdir()) == []
    make_sample(tmp_path, images=4, size=32)
    (tmp_path / "images" / ".DS_Store").touch()
    make_sample(tmp_path, images=2, size=32)
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == [".DS_Store", "00000.jpg", "00001.jpg"]
    (tmp_path / "labels.csv").unlink()
    with pytest.raises(LabelwiseError, match="holds other images or labels"):
        make_sample(tmp_path, images=2, size=32)
