"""The built-in sample set: small drawn landscapes with labels that go together (an umbrella in the rain, stars around
the moon, fish and boats at sea) and labels that exclude each other (sun and moon). Seeded, made in seconds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from labelwise.core.errors import LabelwiseError
from labelwise.core.files import replace_folder
from labelwise.core.progress import ShowProgress, track
from labelwise.data import sample_shapes as shapes
from labelwise.data.images import Box
from labelwise.data.manifests import write_manifest
from labelwise.data.sample_shapes import Canvas, Colour, Pen
from labelwise.data.table import LabelTable

SAMPLE_LABELS = (
    "bird", "boat", "car", "cloud", "fish", "house", "moon", "person", "rain", "stars", "sun", "tree", "umbrella",
)  # fmt: skip
_ID = {name: number for number, name in enumerate(SAMPLE_LABELS, start=1)}  # 0 is "nothing" on the owner map
_ENOUGH = {"bird": 0.0006, "rain": 0.0006, "stars": 0.0006}  # visible share of the image that counts; others: 0.002
# Two colours each: above and below, or far and near.
_SKIES = [((84, 160, 226), (206, 232, 246)), ((120, 150, 176), (210, 218, 222)), ((60, 140, 190), (236, 226, 200))]
_FIELDS = [  # summer, autumn, snow
    ((150, 186, 110), (96, 148, 70)),
    ((214, 200, 130), (170, 150, 84)),
    ((236, 240, 244), (206, 216, 226)),
]
_WATERS = [((130, 180, 206), (40, 100, 150)), ((120, 190, 180), (30, 120, 130)), ((150, 160, 176), (80, 96, 120))]

Shape = Callable[..., None]  # takes a pen, and perhaps more
Range = tuple[float, float]


@dataclass(frozen=True)
class Scene:
    """One image, and for each label in it the box around all its visible pixels."""

    image: Image.Image
    boxes: dict[str, Box]


def draw_scene(number: int, size: int = 160, seed: int = 0) -> Scene:
    """Draw image `number` of the set with that seed; it does not depend on the others.

    >>> draw_scene(0).boxes["sun"]
    (114, 36, 153, 69)
    """
    return _Landscape(np.random.default_rng((seed, number)), size).draw()


class _Landscape:
    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self.rng = rng
        self.night, self.sea = rng.random() < 0.38, rng.random() < 0.42
        self.horizon = rng.uniform(0.46, 0.62)
        self.canvas = self._sky(size, dusk=rng.random() < 0.22)
        self.pen = Pen(self.canvas, rng)  # of the whole image
        self.raining = rng.random() < 0.34
        half_width = rng.uniform(0.14, 0.26)
        self.rain_cloud = rng.uniform(half_width, 1 - half_width), rng.uniform(0.1, 0.2), half_width  # x, y, size
        self.standing: list[tuple[float, Shape, float, float, float]] = []  # (distance, shape, x, y, size)

    def draw(self) -> Scene:
        self._lights()
        self._clouds()
        self._hills()
        if self.sea:
            self._at_sea()
        else:
            self._on_land()
        for _, shape, x, y, size in sorted(self.standing, key=lambda thing: thing[0]):  # from far to near
            self._draw(shape, x, y, size)
        if self.raining:
            self._draw(shapes.rain, *self.rain_cloud, foot=self.rng.uniform(0.72, 0.95))
        if self._chance(0.12 if self.night else 0.45):
            for _ in range(self.rng.integers(1, 4)):
                self._draw_between(shapes.bird, (0.08, 0.92), (0.12, self.horizon), (0.03, 0.055))
        return Scene(self.canvas.finish(self.rng, grain=self._between(1.5, 5)), self._visible_boxes())

    def _chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def _between(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def _draw(self, shape: Shape, x: float, y: float, size: float, **options: Any) -> None:
        label = _ID.get(shape.__name__, 0)
        shape(replace(self.pen, x=x, y=y, size=size, label=label), **options)

    def _draw_between(self, shape: Shape, x: Range, y: Range, size: Range, **options: Any) -> None:
        """Draw it at a random place in a random size."""
        self._draw(shape, self._between(*x), self._between(*y), self._between(*size), **options)

    # ---- the sky

    def _sky(self, size: int, dusk: bool) -> Canvas:
        """Dusk may belong to a day or to a night, so the colour of the sky does not tell sun from moon."""
        if dusk:
            return Canvas(size, (70, 66, 120), (248, 158, 112), self.horizon, light=self._between(0.62, 0.8))
        if self.night:
            blue = int(self.rng.integers(46, 84))
            return Canvas(size, (8, 12, blue // 2), (30, 40, blue + 30), self.horizon, light=self._between(0.42, 0.6))
        above, below = _SKIES[self.rng.integers(3)]
        return Canvas(size, above, below, self.horizon, light=self._between(0.86, 1.0))

    def _lights(self) -> None:
        """Sun, or moon and stars: never both. They may touch the hills."""
        at = self._between(0.12, 0.88), self._between(0.12, self.horizon - 0.06)
        if self.night:
            has_moon = self._chance(0.4 if self.raining else 0.75)
            if self._chance(0.8 if has_moon else 0.35):
                self._draw_between(shapes.stars, (0.2, 0.8), (0.1, 0.25), (0.08, 0.2))
            if has_moon:
                self._draw(shapes.moon, *at, self._between(0.045, 0.085))
        elif self._chance(0.2 if self.raining else 0.7):
            self._draw(shapes.sun, *at, self._between(0.05, 0.085))
        if self._chance(0.15):  # round and bright, but neither sun nor moon
            self._draw_between(shapes.balloon, (0.1, 0.9), (0.1, 0.3), (0.03, 0.06))

    def _clouds(self) -> None:
        if self.raining or self._chance(0.45):
            for _ in range(self.rng.integers(1, 3)):
                at = self._between(0.1, 0.9), self._between(0.08, 0.32), self._between(0.08, 0.15)
                self._draw(shapes.cloud, *at, dark=self._chance(0.25))
        if self.raining:
            self._draw(shapes.cloud, *self.rain_cloud, dark=self._chance(0.8))

    # ---- the ground

    def _hills(self) -> None:
        steps = np.linspace(0, 1, 40)
        for layer in range(self.rng.integers(1, 3)):
            colour: Colour = (132, 150, 172) if self.sea else [(120, 150, 140), (96, 136, 104)][layer]
            height = self._between(0.03, 0.07) * (0.6 if self.sea else 1) / (1 + layer)
            wave = np.sin(self._between(1, 3) * math.tau * steps + self._between(0, 6))
            ridge = self.horizon - height * (1.2 + wave + 0.4 * np.sin(self._between(9, 21) * steps))
            outline = list(zip(steps.tolist(), ridge.tolist(), strict=True))
            self.pen.polygon([(0.0, self.horizon + 0.02), *outline, (1.0, self.horizon + 0.02)], colour)

    def _ground(self, far: Colour, near: Colour) -> None:
        for share in np.linspace(0, 1, 12):
            colour = tuple(int(f * (1 - share) + n * share) for f, n in zip(far, near, strict=True))
            top = self.horizon + (1 - self.horizon) * share * 0.95
            self.pen.box(0, top, 1, 1 - top + 0.01, colour)

    def _nearness(self, y: float) -> float:
        """0.55 at the horizon, 1 at the lower edge: how large things look."""
        return 0.55 + 0.45 * (y - self.horizon) / (1 - self.horizon)

    def _stand(self, shape: Shape, size: Range, y: float) -> None:
        """Anywhere from left to right; what has a label keeps farther from the edges."""
        margin = 0.12 if shape.__name__ in _ID else 0.08
        x = self._between(margin, 1 - margin)
        self.standing.append((y, shape, x, y, self._between(*size) * self._nearness(y)))

    def _scatter(self, shape: Shape, chance: float, size: Range, y: Range, most: int = 1) -> None:
        """Perhaps one, or up to `most` of them."""
        if self._chance(chance):
            for _ in range(self.rng.integers(1, most + 1)):
                self._stand(shape, size, self._between(*y))

    def _on_land(self) -> None:
        self._ground(*_FIELDS[self.rng.choice(3, p=[0.6, 0.25, 0.15])])
        if self._chance(0.55):  # a road, with a car or without
            road = self._between(self.horizon + 0.16, 0.92)
            self.pen.box(0, road - 0.06, 1, 0.085, (112, 112, 118))
            for dash in np.arange(0.03, 1, 0.14):
                self.pen.box(dash, road - 0.022, 0.06, 0.008, (226, 226, 214))
            if self._chance(0.7):
                self._stand(shapes.car, (0.2, 0.28), road)
        self._scatter(shapes.house, 0.45, (0.2, 0.32), (self.horizon + 0.04, self.horizon + 0.2))
        anywhere = self.horizon + 0.05, 0.95
        self._scatter(shapes.tree, 0.55, (0.2, 0.36), anywhere, most=3)
        self._scatter(shapes.bush, 0.4, (0.096, 0.144), anywhere)
        self._scatter(shapes.rock, 0.25, (0.08, 0.12), anywhere)
        self._scatter(shapes.lamp, 0.2, (0.24, 0.36), anywhere)
        if self._chance(0.4):
            self._somebody(self._between(self.horizon + 0.12, 0.96))

    def _at_sea(self) -> None:
        self._ground(*_WATERS[self.rng.integers(3)])
        for _ in range(26):  # waves
            x, y = self._between(0, 1), self._between(self.horizon + 0.02, 0.98)
            length = self._between(0.02, 0.07) * self._nearness(y)
            self.pen.line([(x, y), (x + length / 2, y - 0.006), (x + length, y)], 0.005, (236, 244, 250, 120))
        shore = 1.0
        if self._chance(0.4):  # a beach along the lower edge
            shore = self._between(0.8, 0.88)
            edge = [(x, shore + 0.02 * math.sin(x * 7 + shore * 40)) for x in np.linspace(0, 1, 24).tolist()]
            self.pen.polygon([(0, 1), *edge, (1, 1)], (232, 208, 156))
            if self._chance(0.7):
                self._somebody(self._between(0.93, 0.98))
            if not self.night and self._chance(0.35):
                self._stand(shapes.umbrella, (0.18, 0.26), 0.97)
        self._scatter(shapes.boat, 0.55, (0.16, 0.3), (self.horizon + 0.05, shore - 0.05), most=2)
        self._scatter(shapes.fish, 0.5, (0.09, 0.15), (self.horizon + 0.05, shore - 0.05), most=3)
        self._scatter(shapes.buoy, 0.25, (0.056, 0.084), (self.horizon + 0.05, shore - 0.03))
        self._scatter(shapes.rock, 0.3, (0.112, 0.168), (self.horizon + 0.05, shore - 0.03))

    def _somebody(self, y: float) -> None:
        """In the rain mostly with an umbrella, else seldom."""
        s = self._between(0.2, 0.28) * self._nearness(y)
        in_rain = self.raining and self._chance(0.75)
        cloud_x, _, cloud_half = self.rain_cloud
        under_cloud = cloud_x + self._between(-0.7, 0.7) * cloud_half
        x = under_cloud if in_rain else self._between(0.12, 0.88)
        if self._chance(0.85 if in_rain else 0.04 if self.night else 0.12):
            self.standing.append((y, shapes.umbrella, x + 0.24 * s, y - 0.52 * s, s * 0.85))
        self.standing.append((y, shapes.person, x, y, s))

    def _visible_boxes(self) -> dict[str, Box]:
        """The labels of which enough is left uncovered."""
        owner = np.asarray(self.canvas.owner)[:: shapes.OVERSAMPLING, :: shapes.OVERSAMPLING]  # [size, size]
        boxes = {}
        for name, number in _ID.items():
            rows, columns = np.nonzero(owner == number)
            if len(rows) >= _ENOUGH.get(name, 0.002) * owner.size:
                boxes[name] = (int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)
        return boxes


_SPLIT_OF_TEN = ("train", "train", "train", "test", "train", "train", "train", "val", "train", "test")


def make_sample(
    folder: str | Path, *, images: int = 1000, size: int = 160, seed: int = 0, progress: ShowProgress = False
) -> LabelTable:
    """Draw the built-in sample set: landscapes with 13 labels, in seconds.

    The same arguments give the same files, byte for byte.

    Args:
        folder: Where `images/*.jpg` and `labels.csv` are written (70% train, 10% val, 20% test).
        images: How many.
        size: Width and height in pixels.
        seed: Another seed gives other images.
        progress: Whether to show it, or a callback.

    >>> import tempfile
    >>> make_sample(tempfile.mkdtemp(), images=10, size=32).split_names
    ('train', 'val', 'test')
    """
    if images < 1 or not 32 <= size <= 2048:
        raise LabelwiseError(f"a sample set needs at least 1 image of 32 to 2048 pixels, not {images} of {size}")
    root = Path(folder)
    _check_folder(root)
    names, present = [f"images/{number:05d}.jpg" for number in range(images)], []

    def draw(folder: Path) -> None:
        for number, name in enumerate(track(names, "Drawing", shown=progress)):
            scene = draw_scene(number, size, seed)
            present.append(list(scene.boxes))
            scene.image.save(folder / Path(name).name, "JPEG", quality=88)

    # An interruption leaves nothing behind, and other files in the folder stay.
    replace_folder(root / "images", draw, replaced=lambda name: re.fullmatch(r"\d{5,}\.jpg", name) is not None)
    splits = [_SPLIT_OF_TEN[number % 10] for number in range(images)]
    paths = [str(root / name) for name in names]
    table = LabelTable.from_lists(paths, present, SAMPLE_LABELS, splits=splits, source=str(root / "labels.csv"))
    write_manifest(table, root / "labels.csv")
    return table


def _check_folder(root: Path) -> None:
    """Raise an error if the folder holds somebody's images or labels: only an earlier sample set is replaced."""
    if root.exists() and not root.is_dir():
        raise LabelwiseError(f"{str(root)!r} is a file; choose a folder")
    opening = b"image,split,labels\nimages/00000.jpg,train,"
    table = root / "labels.csv"
    ours = table.is_file() and table.read_bytes().startswith(opening)
    images = (path.name for path in (root / "images").glob("*") if not path.name.startswith("."))
    if not ours and (table.exists() or any(images)):
        raise LabelwiseError(f"{str(root)!r} holds other images or labels; choose another folder", options={"out": ...})
