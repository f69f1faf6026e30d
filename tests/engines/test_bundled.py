"""The tagger that comes with labelwise, on real photos that scikit-image carries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import skimage

import labelwise as lw
from labelwise.bundled import default_model
from labelwise.cli.export import export

PHOTOS = Path(skimage.__file__).parent / "data"
MEGABYTES = 25


@pytest.fixture(scope="module")
def tagger() -> lw.Tagger:
    return lw.load()


@pytest.mark.parametrize(
    ("photo", "label"),
    [
        ("astronaut.png", "person"),
        ("camera.png", "person"),
        ("chelsea.png", "cat"),
        ("motorcycle_left.png", "motorcycle"),
        ("coffee.png", "cup"),
    ],
)
def test_it_knows_what_is_in_the_photo(tagger: lw.Tagger, photo: str, label: str) -> None:
    (prediction,) = tagger.predict(PHOTOS / photo)
    assert prediction.labels[0] == label
    assert prediction.attention(label).sum() == pytest.approx(1, abs=1e-4)


def test_nothing_it_knows_is_in_bricks_or_a_rocket(tagger: lw.Tagger) -> None:
    bricks, rocket = tagger.predict([PHOTOS / "brick.png", PHOTOS / "rocket.jpg"])
    assert bricks.labels == rocket.labels == []


def test_it_can_be_exported_without_a_name(tagger: lw.Tagger, tmp_path: Path) -> None:
    export(out=tmp_path / "tagger")
    (exported,), (own,) = (one.predict(PHOTOS / "chelsea.png") for one in (lw.load(tmp_path / "tagger"), tagger))
    assert exported.labels == own.labels == ["cat"]
    assert exported.scores == pytest.approx(own.scores, abs=1e-3)


def test_it_is_small_and_its_card_tells_what_was_measured() -> None:
    folder = default_model()
    assert sum(file.stat().st_size for file in folder.iterdir()) < MEGABYTES * 1e6
    measured = json.loads((Path(__file__).parents[2] / "docs" / "results" / "bundled-coco.json").read_text())
    card = (folder / "README.md").read_text()
    assert f"value: {round(measured['mAP'], 3)}" in card
    for name in ("mAP", "CF1", "OF1", "CP", "CR", "OP", "OR"):
        low, high = measured["confidence"][name]
        assert f"| {measured[name]:.1f} [{low:.1f}, {high:.1f}] |" in card
    assert "bootstrap" not in card  # intervals are from halves of the images
    for row in measured["per_label"]:
        assert f"| {row['label']} | {row['threshold']:.3f} | {row['AP']:.1f} |" in card


def test_nothing_is_measured_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of it ships with it: its first start is as fast as all others."""
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path))
    said: list[str] = []
    tagger = lw.load(engine="auto", images=1_000_000, say=said.append)
    assert (tagger.family, said, list(tmp_path.iterdir())) == ("onnxruntime", [], [])
