"""Attention over a picture: in the right place, visible, and honest when there is nothing to see."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from labelwise.data.preprocessing import Preprocessing
from labelwise.loading.augment import eval_transform
from labelwise.reports import overlay
from labelwise.reports.explanation import draw_explanation
from labelwise.reports.overlay import data_uri, heat_colour, seen_box
from labelwise.runtime.prediction import Prediction, TaggerConfig

GREY = Image.new("RGB", (80, 40), (100, 100, 100))


SQUASH, CROP = Preprocessing(resize="squash"), Preprocessing(resize="crop")


def change(attention: np.ndarray, preprocessing: Preprocessing, score: float = 1.0) -> np.ndarray:
    """How much the overlay changes each pixel of a grey picture, [h, w]."""
    mixed = np.asarray(overlay(GREY, attention, preprocessing, score=score), np.float64)
    return np.abs(mixed - 100).sum(axis=-1)


@pytest.mark.parametrize(
    "way", [{"resize": "squash"}, {"resize": "crop"}, {"resize": "crop", "crop_ratio": 0.8}, {"resize": "pad"}]
)
def test_warm_where_the_model_looked(way: dict[str, Any]) -> None:
    """A white spot runs through the model's own preprocessing; its brightness is the map; the overlay must hit it."""
    spot = Image.new("RGB", (80, 40))
    spot.paste((255, 255, 255), (26, 6, 36, 16))
    preprocessing = Preprocessing(size=16, **way)
    seen = eval_transform(preprocessing)(spot).mean(dim=0).numpy()
    seen = seen * (np.abs(seen - 128 / 255) > 0.01)  # the bars of `pad` are grey, and no spot
    warm = change(seen / seen.sum(), preprocessing)
    rows, columns = np.nonzero(warm > warm.max() * 0.6)
    assert rows.mean() == pytest.approx(10.5, abs=1.5)
    assert columns.mean() == pytest.approx(30.5, abs=1.5)


def test_what_the_model_did_not_see_stays_as_it_is() -> None:
    warm = change(np.array([[0.1, 0.4], [0.4, 0.1]]), CROP)
    left, top, right, bottom = seen_box(80, 40, CROP)
    assert warm[:, :left].max() == warm[:, right:].max() == 0
    assert warm[top:bottom, left:right].max() > 100


def test_the_picture_stays_visible_where_it_is_hottest() -> None:
    stripes = np.zeros((40, 40, 3), np.uint8)
    stripes[:, ::2] = 255
    spot = np.zeros((4, 4))
    spot[1, 1] = 1
    mixed = np.asarray(overlay(Image.fromarray(stripes), spot), np.float64)
    assert np.abs(np.diff(mixed[15, 12:18].mean(axis=-1))).min() > 50


def test_even_attention_shows_nothing_and_small_differences_little() -> None:
    assert change(np.full((3, 3), 1 / 9), SQUASH).max() == 0
    almost = np.full((3, 3), 1 / 9)
    almost[0, 0] *= 1.02
    strong = np.full((3, 3), 0.02)
    strong[0, 0] = 0.84
    assert change(almost, SQUASH).max() < change(strong, SQUASH).max() / 10


def test_a_map_is_as_strong_as_its_score() -> None:
    """Attention sums to 1 also for a label that is not there: a bird of 0.01 must not glow like a cat of 1.00."""
    spot = np.zeros((4, 4))
    spot[1, 1] = 1
    strength = [change(spot, SQUASH, score).max() for score in (0.0, 0.01, 0.5, 1.0)]
    assert strength[0] == 0
    assert strength == sorted(strength)
    assert strength[1] < strength[3] / 30


def test_the_figure_of_an_explanation_scales_its_maps() -> None:
    config = TaggerConfig(labels=("bird", "cat"), preprocessing=SQUASH, thresholds=(0.5, 0.5))
    prediction = Prediction(config, GREY, np.array([0.01, 1.0]))
    spot = np.zeros((4, 4))
    spot[1, 1] = 1
    picture = np.asarray(draw_explanation(prediction, {"bird": spot, "cat": spot}, ""), np.float64)
    third = (picture.shape[1] - 18) // 3  # three cells: the image, bird and cat
    colourful = np.ptp(picture[60:250], axis=-1)  # grey has none
    _, bird, cat = (colourful[:, 18 + third * n : 18 + third * (n + 1)].max() for n in range(3))
    assert bird < 6
    assert cat > 100


def test_colours_are_infernos() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    places = np.linspace(0, 1, 50)
    expected = matplotlib.colormaps["inferno"](places)[:, :3] * 255
    assert np.abs(heat_colour(places) - expected).max() < 20  # straight lines between nine of its 256 colours
    lightness = heat_colour(places) @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(lightness) > 0).all()


def test_data_uri_is_a_jpeg_within_its_limit() -> None:
    kind, _, data = data_uri(Image.new("RGBA", (900, 300), (255, 0, 0, 255)), 90).partition(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(BytesIO(base64.b64decode(data))).size == (90, 30)
