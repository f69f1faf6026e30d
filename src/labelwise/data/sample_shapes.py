"""What the sample images are made of: each function draws one thing and says, pixel by pixel, that it is there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from PIL import Image, ImageDraw

Colour = tuple[int, ...]  # RGB, or RGB and opacity
Point = tuple[float, float]

OVERSAMPLING = 2  # drawn twice as large and averaged down: smooth edges


class Canvas:
    """An image in unit coordinates, x to the right and y down, and the label that owns each pixel (0: none)."""

    def __init__(self, size: int, sky_top: Colour, sky_bottom: Colour, horizon: float, light: float) -> None:
        side = size * OVERSAMPLING
        ramp = np.linspace(0, 1 / horizon, side).clip(max=1)[:, None]
        rows = np.asarray(sky_top) * (1 - ramp) + np.asarray(sky_bottom) * ramp  # [side, 3]
        sky = np.repeat(rows.round().astype(np.uint8)[:, None], side, axis=1)
        self.image, self.owner = Image.fromarray(sky), Image.new("L", (side, side))
        self.side, self.light = side, light
        self.brush, self.marker = ImageDraw.Draw(self.image, "RGBA"), ImageDraw.Draw(self.owner)

    def finish(self, rng: np.random.Generator, grain: float) -> Image.Image:
        """Averaged down, with the grain of a camera's sensor."""
        small = np.asarray(self.image.reduce(OVERSAMPLING), np.float32)  # [size, size, 3]
        noise = rng.normal(0, grain, small.shape[:2])[..., None]
        return Image.fromarray(np.clip(small + noise, 0, 255).astype(np.uint8))


@dataclass(frozen=True)
class Pen:
    """Draws one thing. The coordinates of its parts count from (x, y), in units of its size."""

    canvas: Canvas
    rng: np.random.Generator
    x: float = 0.0
    y: float = 0.0
    size: float = 1.0
    label: int = 0
    facing: int = 1  # -1: mirrored

    @property
    def is_dark(self) -> bool:
        return self.canvas.light < 0.7

    def polygon(self, points: Sequence[Point], colour: Colour, glowing: bool = False) -> None:
        self._draw("polygon", points, colour if glowing else self._lit(colour))

    def ellipse(self, x: float, y: float, rx: float, ry: float, colour: Colour, glowing: bool = False) -> None:
        rx *= self.facing  # the left corner stays left
        self._draw("ellipse", [(x - rx, y - ry), (x + rx, y + ry)], colour if glowing else self._lit(colour))

    def box(self, x: float, y: float, width: float, height: float, colour: Colour, glowing: bool = False) -> None:
        """With its top left corner at (x, y)."""
        self.polygon([(x, y), (x + width, y), (x + width, y + height), (x, y + height)], colour, glowing)

    def line(self, points: Sequence[Point], thickness: float, colour: Colour) -> None:
        """Unlike everything else, the thickness is in units of the image."""
        width = max(1, round(thickness * self.canvas.side))
        self._draw("line", points, self._lit(colour), width=width, joint="curve")

    def shine(self, radius: float, colour: Colour, y: float = 0.0) -> None:
        """A soft glow; it covers nothing."""
        for step in range(6, 0, -1):
            r = radius * step / 6
            self._draw("ellipse", [(-r, y - r), (r, y + r)], (*colour, 18), covers=False)

    def pick(self, *colours: Colour) -> Colour:
        """One of the colours, a little changed."""
        base = colours[int(self.rng.integers(len(colours)))]
        return tuple(int(np.clip(c + self.rng.integers(-14, 15), 0, 255)) for c in base)

    def turned(self) -> Self:
        """To the left or to the right."""
        return replace(self, facing=int(self.rng.choice([-1, 1])))

    def _draw(self, kind: str, points: Sequence[Point], colour: Colour, *, covers: bool = True, **options: Any) -> None:
        """A shape of `ImageDraw`; if it `covers` what was there, its pixels belong to the label."""
        placed = [(self.x + self.facing * x * self.size, self.y + y * self.size) for x, y in points]
        scaled = [(x * self.canvas.side, y * self.canvas.side) for x, y in placed]
        getattr(self.canvas.brush, kind)(scaled, fill=colour, **options)
        if covers:
            getattr(self.canvas.marker, kind)(scaled, fill=self.label, **options)

    def _lit(self, colour: Colour) -> Colour:
        """By night everything that does not shine is darker and bluer."""
        light = self.canvas.light
        tint = (light, light + 0.04 * (1 - light), light + 0.18 * (1 - light))
        return tuple(min(255, int(c * t)) for c, t in zip(colour[:3], tint, strict=True)) + tuple(colour[3:])


def _darker(colour: Colour, by: float = 0.75) -> Colour:
    return tuple(int(c * by) for c in colour[:3])


# ---- things with a label. The pen is at their foot, or in the middle of what floats in the sky.


def sun(pen: Pen) -> None:
    yellow = pen.pick((255, 222, 70), (255, 190, 60), (255, 160, 70))
    pen.shine(2.2, (255, 240, 180))
    if pen.rng.random() < 0.5:
        for angle in np.arange(0, 2 * math.pi, math.pi / 5) + pen.rng.random():
            tip = (math.cos(angle) * 1.6, math.sin(angle) * 1.6)
            sides = [(math.cos(angle + d), math.sin(angle + d)) for d in (-0.13, 0.13)]
            pen.polygon([tip, *sides], yellow, glowing=True)
    pen.ellipse(0, 0, 1, 1, yellow, glowing=True)


def moon(pen: Pen) -> None:
    pale = pen.pick((244, 241, 222), (226, 228, 236))
    pen.shine(2, (220, 225, 255))
    if pen.rng.random() < 0.5:
        pen.ellipse(0, 0, 1, 1, pale, glowing=True)
        for x, y, r in ((-0.35, -0.2, 0.22), (0.3, 0.3, 0.17), (0.25, -0.45, 0.12)):
            pen.ellipse(x, y, r, r, _darker(pale, 0.86), glowing=True)
        return
    tilt, side = pen.rng.uniform(-0.5, 0.5), pen.rng.choice([-1, 1])
    angle = np.linspace(-math.pi / 2, math.pi / 2, 24)
    outside, inside = (np.stack([width * np.cos(angle), np.sin(angle)], -1) for width in (1, 0.45))
    turn = np.array([[math.cos(tilt), -math.sin(tilt)], [math.sin(tilt), math.cos(tilt)]])
    crescent = np.concatenate([outside, inside[::-1]]) * [side, 1] @ turn.T  # [48, 2]
    pen.polygon(crescent.tolist(), pale, glowing=True)


def stars(pen: Pen) -> None:
    """Spread over the size of the pen."""
    corners = [(1.0 if k % 2 == 0 else 0.35, k * math.pi / 4) for k in range(8)]
    outline = [(radius * math.cos(angle), radius * math.sin(angle)) for radius, angle in corners]
    for _ in range(pen.rng.integers(7, 16)):
        x, y = pen.x + pen.rng.normal(0, pen.size), pen.y + pen.rng.normal(0, pen.size * 0.5)
        star = replace(pen, x=x, y=y, size=pen.rng.uniform(0.006, 0.017))
        star.polygon(outline, pen.pick((255, 250, 220)), glowing=True)


def cloud(pen: Pen, dark: bool) -> None:
    grey, white = ((120, 126, 140), (98, 104, 120)), ((250, 250, 252), (232, 236, 242))
    colour = pen.pick(*(grey if dark else white))
    middles = (-0.7, -0.3, 0.1, 0.45, 0.8)
    puffs = [(x + pen.rng.uniform(-0.1, 0.1), pen.rng.uniform(0.3, 0.5) * (1.3 - abs(x))) for x in middles]
    for shade, drop in ((_darker(colour, 0.88), 0.1), (colour, 0.0)):  # a darker underside
        for x, r in puffs:
            pen.ellipse(x, drop - 0.4 * r, r, 0.8 * r, shade)


def rain(pen: Pen, foot: float) -> None:
    """Streaks from a cloud at the pen down to `foot`, blown to one side."""
    slant = pen.rng.uniform(-0.25, 0.25)
    colour = (170, 196, 230) if pen.is_dark else (110, 144, 196)
    for _ in range(int(34 + 60 * pen.size)):
        fallen = pen.rng.uniform(0.02, foot - pen.y)
        x = pen.x + pen.rng.uniform(-pen.size, pen.size) * 0.95 + slant * fallen
        drop = replace(pen, x=x, y=pen.y + fallen, size=pen.rng.uniform(0.03, 0.055))
        drop.line([(0, 0), (slant, 1)], 0.006, (*colour, 225))


def bird(pen: Pen) -> None:
    colour = pen.pick((40, 42, 52), (245, 245, 245), (150, 60, 50), (40, 90, 150))
    lift = pen.rng.uniform(0.3, 0.7)
    pen = pen.turned()
    for side in (-1, 1):
        pen.polygon([(side, -lift), (side * 0.4, -lift * 0.9), (0, 0), (side * 0.35, -0.2)], colour)
    pen.ellipse(0, 0, 0.36, 0.17, colour)
    pen.polygon([(0.3, -0.1), (0.56, 0), (0.3, 0.08)], (240, 160, 40))


def tree(pen: Pen) -> None:
    pen.box(-0.06, -0.4, 0.12, 0.4, pen.pick((110, 74, 46), (88, 62, 44)))
    leaves = pen.pick((58, 128, 62), (92, 150, 60), (196, 118, 40), (40, 96, 70))
    if pen.rng.random() < 0.45:
        for step in range(3):
            top, half = 0.22 * step - 1.0, 0.2 + 0.07 * step
            pen.polygon([(0, top), (-half, top + 0.36), (half, top + 0.36)], _darker(leaves, 1 - 0.08 * step))
        return
    for x, y, r in ((-0.17, -0.5, 0.2), (0.17, -0.52, 0.2), (0.0, -0.72, 0.25)):
        pen.ellipse(x, y, r, r, leaves)
    pen.ellipse(-0.05, -0.76, 0.13, 0.12, tuple(min(255, int(c * 1.15)) for c in leaves))


def house(pen: Pen) -> None:
    wall = pen.pick((236, 216, 180), (214, 120, 96), (170, 190, 210), (240, 240, 232), (196, 170, 120))
    roof = pen.pick((150, 60, 48), (92, 74, 66), (70, 84, 110))
    width, height = pen.rng.uniform(0.8, 1.1), pen.rng.uniform(0.5, 0.65)
    pen.box(width * 0.22, -height - 0.42, 0.1, 0.3, _darker(roof))  # chimney
    pen.box(-width / 2, -height, width, height, wall)
    eaves = width * 0.58
    pen.polygon([(-eaves, -height), (eaves, -height), (0, -height - 0.42)], roof)
    pen.box(-width * 0.07, -height * 0.55, width * 0.15, height * 0.55, _darker(roof, 0.9))  # door
    lit = pen.is_dark and pen.rng.random() < 0.8
    for x in (-0.36, 0.2):
        pane = (255, 224, 130) if lit else (120, 160, 190)
        pen.box(x * width, -height * 0.75, width * 0.17, height * 0.3, pane, glowing=lit)


def car(pen: Pen) -> None:
    paint = pen.pick((200, 50, 46), (50, 90, 170), (240, 196, 60), (232, 232, 232), (60, 130, 110), (70, 70, 80))
    pen = pen.turned()
    pen.polygon([(-0.28, -0.28), (-0.17, -0.46), (0.14, -0.46), (0.3, -0.28)], _darker(paint, 0.92))  # cabin
    pen.polygon([(-0.2, -0.29), (-0.13, -0.42), (0.11, -0.42), (0.22, -0.29)], (176, 208, 226))  # pane
    pen.polygon([(-0.5, -0.1), (-0.5, -0.25), (-0.42, -0.3), (0.36, -0.3), (0.5, -0.22), (0.5, -0.1)], paint)
    for x in (-0.28, 0.28):
        pen.ellipse(x, -0.09, 0.1, 0.1, (34, 34, 38))
        pen.ellipse(x, -0.09, 0.045, 0.045, (180, 180, 186))
    pen.ellipse(0.47, -0.2, 0.03, 0.03, (255, 244, 190), glowing=True)


def person(pen: Pen) -> None:
    shirt = pen.pick((210, 70, 80), (70, 110, 190), (240, 180, 60), (80, 150, 100), (150, 90, 170), (230, 230, 230))
    trousers = pen.pick((50, 60, 90), (90, 80, 70), (40, 40, 46))
    skin = pen.pick((240, 200, 170), (200, 150, 110), (130, 90, 64))
    for x in (-0.09, 0.02):
        pen.box(x, -0.42, 0.08, 0.42, trousers)
    pen.polygon([(-0.13, -0.8), (0.13, -0.8), (0.11, -0.4), (-0.11, -0.4)], shirt)
    pen.line([(0.12, -0.76), (0.24, -0.55)], 0.06 * pen.size, shirt)
    pen.line([(-0.12, -0.76), (-0.2, -0.48)], 0.06 * pen.size, shirt)
    pen.ellipse(0, -0.9, 0.1, 0.11, skin)
    pen.ellipse(0, -0.96, 0.1, 0.06, pen.pick((60, 40, 30), (30, 26, 24), (190, 150, 80)))  # hair


def umbrella(pen: Pen) -> None:
    """Its stick ends at the pen; the canopy is as wide as the pen's size."""
    colours = [(214, 60, 70), (60, 120, 200), (250, 200, 70), (110, 70, 150), (40, 150, 130), (240, 130, 160)]
    first = pen.pick(*colours)
    second = pen.pick(*colours) if pen.rng.random() < 0.5 else _darker(first, 0.84)
    pen.line([(0, 0), (0, -1.1)], max(0.006, pen.size * 0.035), (90, 70, 60))
    rim, bow = -0.7, np.linspace(math.pi, 2 * math.pi, 20).tolist()
    for share, colour in ((1.0, first), (0.56, second), (0.2, first)):  # the panels, outer ones first
        pen.polygon([(math.cos(a) / 2 * share, rim + math.sin(a) * 0.36) for a in bow], colour)
    for x, colour in ((-0.39, first), (-0.19, second), (0.0, first), (0.19, second), (0.39, first)):
        pen.ellipse(x, rim, 0.11, 0.045, colour)


def boat(pen: Pen) -> None:
    hull = pen.pick((140, 80, 50), (190, 50, 50), (40, 60, 100), (240, 240, 240))
    rim = -0.2
    if pen.rng.random() < 0.65:  # under sail
        sail = pen.pick((250, 248, 240), (240, 190, 80), (220, 110, 90))
        pen.line([(0, rim), (0, -1)], 0.03 * pen.size, (90, 70, 60))
        pen.polygon([(0.04, -0.97), (0.04, -0.26), (0.42, -0.26)], sail)
        pen.polygon([(-0.04, -0.85), (-0.04, -0.26), (-0.32, -0.26)], _darker(sail, 0.9))
    else:
        pen.box(-0.22, rim - 0.2, 0.44, 0.22, (236, 232, 224))
        pen.box(-0.05, rim - 0.42, 0.13, 0.24, _darker(hull))
        for x in (-0.15, 0.0, 0.13):
            pen.ellipse(x, rim - 0.1, 0.035, 0.035, (70, 110, 150))
    pen.polygon([(-0.5, rim), (0.5, rim), (0.34, 0), (-0.36, 0)], hull)


def fish(pen: Pen) -> None:
    colour = pen.pick((250, 140, 50), (240, 90, 90), (170, 190, 200), (250, 210, 70), (110, 200, 160))
    pen = pen.turned()
    pen.polygon([(-0.4, 0), (-0.75, -0.26), (-0.66, 0), (-0.75, 0.26)], _darker(colour, 0.9))  # tail
    pen.polygon([(-0.1, -0.22), (0.12, -0.42), (0.2, -0.2)], _darker(colour, 0.85))  # fin
    pen.ellipse(0, 0, 0.5, 0.27, colour)
    pen.ellipse(0.3, -0.07, 0.07, 0.07, (250, 250, 250))
    pen.ellipse(0.32, -0.07, 0.035, 0.035, (20, 20, 20))


# ---- things without a label, some of which look a little like one


def bush(pen: Pen) -> None:
    leaves = pen.pick((70, 130, 70), (100, 140, 66), (180, 110, 50))
    for x, r in ((-0.3, 0.24), (0.0, 0.32), (0.3, 0.25)):
        pen.ellipse(x, -0.7 * r, r, 0.8 * r, leaves)


def rock(pen: Pen) -> None:
    grey = pen.pick((130, 128, 126), (108, 106, 110))
    pen.polygon([(-0.5, 0), (-0.3, -0.4), (0.1, -0.5), (0.5, 0)], grey)


def balloon(pen: Pen) -> None:
    colour = pen.pick((240, 190, 70), (230, 110, 80), (120, 170, 220), (235, 235, 225))
    pen.line([(-0.5, 0.5), (0, 1.7), (0.5, 0.5)], 0.005, (80, 70, 60))
    pen.polygon([(-0.93, 0.35), (0.93, 0.35), (0.2, 1.4), (-0.2, 1.4)], colour)
    pen.ellipse(0, 0, 1, 1, colour)
    pen.ellipse(0, 0, 0.42, 1, _darker(colour, 0.82))
    pen.box(-0.2, 1.5, 0.4, 0.32, (130, 90, 60))


def lamp(pen: Pen) -> None:
    pen.line([(0, 0), (0, -1)], 0.035 * pen.size, (60, 60, 66))
    if pen.is_dark:
        pen.shine(0.5, (255, 236, 170), y=-1)
    pen.ellipse(0, -1, 0.1, 0.1, (255, 244, 200), glowing=pen.is_dark)


def buoy(pen: Pen) -> None:
    pen.polygon([(-0.35, 0), (0.35, 0), (0.12, -1), (-0.12, -1)], (210, 60, 50))
    pen.polygon([(-0.24, -0.4), (0.24, -0.4), (0.18, -0.65), (-0.18, -0.65)], (240, 240, 240))
