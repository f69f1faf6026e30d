"""What the sample images are made of: each function draws one thing and says, pixel by pixel, that it is there."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
        self._draw, self._mark = ImageDraw.Draw(self.image, "RGBA"), ImageDraw.Draw(self.owner)

    def _lit(self, colour: Colour, glowing: bool) -> Colour:
        """By night everything that does not shine is darker and bluer."""
        if glowing:
            return colour
        light = self.light
        tint = (light, light + 0.04 * (1 - light), light + 0.18 * (1 - light))
        return tuple(min(255, int(c * t)) for c, t in zip(colour[:3], tint, strict=True)) + tuple(colour[3:])

    def polygon(self, points: Sequence[Point], colour: Colour, label: int = 0, glowing: bool = False) -> None:
        scaled = [(x * self.side, y * self.side) for x, y in points]
        self._draw.polygon(scaled, fill=self._lit(colour, glowing))
        self._mark.polygon(scaled, fill=label)

    def ellipse(
        self, x: float, y: float, rx: float, ry: float, colour: Colour, label: int = 0, glowing: bool = False
    ) -> None:
        box = [(x - rx) * self.side, (y - ry) * self.side, (x + rx) * self.side, (y + ry) * self.side]
        self._draw.ellipse(box, fill=self._lit(colour, glowing))
        self._mark.ellipse(box, fill=label)

    def box(
        self, x: float, y: float, width: float, height: float, colour: Colour, label: int = 0, glowing: bool = False
    ) -> None:
        """With its top left corner at (x, y)."""
        self.polygon([(x, y), (x + width, y), (x + width, y + height), (x, y + height)], colour, label, glowing)

    def line(self, points: Sequence[Point], thickness: float, colour: Colour, label: int = 0) -> None:
        scaled = [(x * self.side, y * self.side) for x, y in points]
        width = max(1, round(thickness * self.side))
        self._draw.line(scaled, fill=self._lit(colour, False), width=width, joint="curve")
        self._mark.line(scaled, fill=label, width=width, joint="curve")

    def shine(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """A soft glow; it covers nothing."""
        for step in range(6, 0, -1):
            r = radius * step / 6
            box = [(x - r) * self.side, (y - r) * self.side, (x + r) * self.side, (y + r) * self.side]
            self._draw.ellipse(box, fill=(*colour[:3], 18))

    def finish(self, rng: np.random.Generator, grain: float) -> Image.Image:
        """Averaged down, with the grain of a camera's sensor."""
        small = np.asarray(self.image.reduce(OVERSAMPLING), np.float32)  # [size, size, 3]
        noise = rng.normal(0, grain, small.shape[:2])[..., None]
        return Image.fromarray(np.clip(small + noise, 0, 255).astype(np.uint8))


def _pick(rng: np.random.Generator, colours: Sequence[Colour]) -> Colour:
    base = colours[int(rng.integers(len(colours)))]
    return tuple(int(np.clip(c + rng.integers(-14, 15), 0, 255)) for c in base)


def _darker(colour: Colour, by: float = 0.75) -> Colour:
    return tuple(int(c * by) for c in colour[:3])


# ---- things with a label. `x` is the middle, `y` the foot (or the middle of what floats in the sky), `s` the size.


def sun(canvas: Canvas, rng: np.random.Generator, label: int, x: float, y: float, s: float) -> None:
    yellow = _pick(rng, [(255, 222, 70), (255, 190, 60), (255, 160, 70)])
    canvas.shine(x, y, s * 2.2, (255, 240, 180))
    if rng.random() < 0.5:
        for angle in np.arange(0, 2 * math.pi, math.pi / 5) + rng.random():
            tip = (x + math.cos(angle) * s * 1.6, y + math.sin(angle) * s * 1.6)
            sides = [(x + math.cos(angle + d) * s, y + math.sin(angle + d) * s) for d in (-0.13, 0.13)]
            canvas.polygon([tip, *sides], yellow, label, glowing=True)
    canvas.ellipse(x, y, s, s, yellow, label, glowing=True)


def moon(canvas: Canvas, rng: np.random.Generator, label: int, x: float, y: float, s: float) -> None:
    pale = _pick(rng, [(244, 241, 222), (226, 228, 236)])
    canvas.shine(x, y, s * 2, (220, 225, 255))
    if rng.random() < 0.5:
        canvas.ellipse(x, y, s, s, pale, label, glowing=True)
        for dx, dy, r in ((-0.35, -0.2, 0.22), (0.3, 0.3, 0.17), (0.25, -0.45, 0.12)):
            canvas.ellipse(x + dx * s, y + dy * s, r * s, r * s, _darker(pale, 0.86), label, glowing=True)
        return
    tilt, side = rng.uniform(-0.5, 0.5), rng.choice([-1, 1])
    outer = np.linspace(-math.pi / 2, math.pi / 2, 24)
    bow = np.concatenate(
        [np.stack([np.cos(outer), np.sin(outer)], -1), np.stack([0.45 * np.cos(outer[::-1]), np.sin(outer[::-1])], -1)]
    )
    turn = np.array([[math.cos(tilt), -math.sin(tilt)], [math.sin(tilt), math.cos(tilt)]])
    points = bow * [side, 1] @ turn.T * s + [x, y]  # [48, 2]
    canvas.polygon([(px, py) for px, py in points.tolist()], pale, label, glowing=True)


def stars(canvas: Canvas, rng: np.random.Generator, label: int, x: float, y: float, s: float) -> None:
    for _ in range(rng.integers(7, 16)):
        cx, cy, r = x + rng.normal(0, s), y + rng.normal(0, s * 0.5), rng.uniform(0.006, 0.017)
        corners = [(r if k % 2 == 0 else r * 0.35, k * math.pi / 4) for k in range(8)]
        points = [(cx + radius * math.cos(angle), cy + radius * math.sin(angle)) for radius, angle in corners]
        canvas.polygon(points, _pick(rng, [(255, 250, 220)]), label, glowing=True)


def cloud(canvas: Canvas, rng: np.random.Generator, label: int, x: float, y: float, s: float, dark: bool) -> None:
    colour = _pick(rng, [(120, 126, 140), (98, 104, 120)] if dark else [(250, 250, 252), (232, 236, 242)])
    puffs = [
        (dx + rng.uniform(-0.1, 0.1), rng.uniform(0.3, 0.5) * (1.3 - abs(dx))) for dx in (-0.7, -0.3, 0.1, 0.45, 0.8)
    ]
    for shade, drop in ((_darker(colour, 0.88), 0.1), (colour, 0.0)):  # a darker underside
        for dx, r in puffs:
            canvas.ellipse(x + dx * s, y - r * s * 0.4 + drop * s, r * s, r * s * 0.8, shade, label)


def rain(canvas: Canvas, rng: np.random.Generator, label: int, x: float, y: float, s: float, foot: float) -> None:
    """Streaks from a cloud at (x, y) down to `foot`, blown to one side."""
    slant = rng.uniform(-0.25, 0.25)
    for _ in range(int(34 + 60 * s)):
        dy = rng.uniform(0.02, foot - y)
        px, py = x + rng.uniform(-s, s) * 0.95 + slant * dy, y + dy
        length = rng.uniform(0.03, 0.055)
        drop: Colour = (170, 196, 230) if canvas.light < 0.7 else (110, 144, 196)
        canvas.line([(px, py), (px + slant * length, py + length)], 0.006, (*drop, 225), label)


def bird(canvas: Canvas, rng: np.random.Generator, label: int, x: float, y: float, s: float) -> None:
    colour = _pick(rng, [(40, 42, 52), (245, 245, 245), (150, 60, 50), (40, 90, 150)])
    lift = rng.uniform(0.3, 0.7)
    canvas.polygon(
        [(x - s, y - lift * s), (x - s * 0.4, y - lift * s * 0.9), (x, y), (x - s * 0.35, y - s * 0.2)], colour, label
    )
    canvas.polygon(
        [(x + s, y - lift * s), (x + s * 0.4, y - lift * s * 0.9), (x, y), (x + s * 0.35, y - s * 0.2)], colour, label
    )
    canvas.ellipse(x, y, s * 0.36, s * 0.17, colour, label)
    facing = rng.choice([-1, 1])
    canvas.polygon(
        [(x + facing * s * 0.3, y - s * 0.1), (x + facing * s * 0.56, y), (x + facing * s * 0.3, y + s * 0.08)],
        (240, 160, 40),
        label,
    )


def tree(canvas: Canvas, rng: np.random.Generator, label: int, x: float, y: float, s: float) -> None:
    canvas.box(x - s * 0.06, y - s * 0.4, s * 0.12, s * 0.4, _pick(rng, [(110, 74, 46), (88, 62, 44)]), label)
    leaves = _pick(rng, [(58, 128, 62), (92, 150, 60), (196, 118, 40), (40, 96, 70)])
    if rng.random() < 0.45:
        for step in range(3):
            top, half = y - s * (1.0 - 0.22 * step), s * (0.2 + 0.07 * step)
            shade = _darker(leaves, 1 - 0.08 * step)
            canvas.polygon([(x, top), (x - half, top + s * 0.36), (x + half, top + s * 0.36)], shade, label)
        return
    for dx, dy, r in ((-0.17, 0.5, 0.2), (0.17, 0.52, 0.2), (0.0, 0.72, 0.25)):
        canvas.ellipse(x + dx * s, y - dy * s, r * s, r * s, leaves, label)
    canvas.ellipse(
        x - 0.05 * s, y - 0.76 * s, 0.13 * s, 0.12 * s, tuple(min(255, int(c * 1.15)) for c in leaves), label
    )


def house(canvas: Canvas, rng: np.random.Generator, label: int, x: float, y: float, s: float) -> None:
    wall = _pick(rng, [(236, 216, 180), (214, 120, 96), (170, 190, 210), (240, 240, 232), (196, 170, 120)])
    roof = _pick(rng, [(150, 60, 48), (92, 74, 66), (70, 84, 110)])
    width, height = s * rng.uniform(0.8, 1.1), s * rng.uniform(0.5, 0.65)
    canvas.box(x + width * 0.22, y - height - s * 0.42, s * 0.1, s * 0.3, _darker(roof), label)  # chimney
    canvas.box(x - width / 2, y - height, width, height, wall, label)
    eaves = width * 0.58
    canvas.polygon([(x - eaves, y - height), (x + eaves, y - height), (x, y - height - s * 0.42)], roof, label)
    canvas.box(x - width * 0.07, y - height * 0.55, width * 0.15, height * 0.55, _darker(roof, 0.9), label)
    lit = canvas.light < 0.7 and rng.random() < 0.8
    for dx in (-0.36, 0.2):
        pane: Colour = (255, 224, 130) if lit else (120, 160, 190)
        canvas.box(x + dx * width, y - height * 0.75, width * 0.17, height * 0.3, pane, label, glowing=lit)


def car(canvas: Canvas, rng: np.random.Generator, label: int, x: float, y: float, s: float) -> None:
    paint = _pick(rng, [(200, 50, 46), (50, 90, 170), (240, 196, 60), (232, 232, 232), (60, 130, 110), (70, 70, 80)])
    facing = rng.choice([-1, 1])
    cabin = [(-0.28, -0.28), (-0.17, -0.46), (0.14, -0.46), (0.3, -0.28)]
    canvas.polygon([(x + facing * dx * s, y + dy * s) for dx, dy in cabin], _darker(paint, 0.92), label)
    pane = [(-0.2, -0.29), (-0.13, -0.42), (0.11, -0.42), (0.22, -0.29)]
    canvas.polygon([(x + facing * dx * s, y + dy * s) for dx, dy in pane], (176, 208, 226), label)
    body = [(-0.5, -0.1), (-0.5, -0.25), (-0.42, -0.3), (0.36, -0.3), (0.5, -0.22), (0.5, -0.1)]
    canvas.polygon([(x + facing * dx * s, y + dy * s) for dx, dy in body], paint, label)
    for dx in (-0.28, 0.28):
        canvas.ellipse(x + dx * s, y - 0.09 * s, 0.1 * s, 0.1 * s, (34, 34, 38), label)
        canvas.ellipse(x + dx * s, y - 0.09 * s, 0.045 * s, 0.045 * s, (180, 180, 186), label)
    canvas.ellipse(x + facing * 0.47 * s, y - 0.2 * s, 0.03 * s, 0.03 * s, (255, 244, 190), label, glowing=True)


def person(canvas: Canvas, rng: np.random.Generator, label: int, x: float, y: float, s: float) -> None:
    shirt = _pick(rng, [(210, 70, 80), (70, 110, 190), (240, 180, 60), (80, 150, 100), (150, 90, 170), (230, 230, 230)])
    trousers = _pick(rng, [(50, 60, 90), (90, 80, 70), (40, 40, 46)])
    skin = _pick(rng, [(240, 200, 170), (200, 150, 110), (130, 90, 64)])
    for dx in (-0.09, 0.02):
        canvas.box(x + dx * s, y - 0.42 * s, 0.08 * s, 0.42 * s, trousers, label)
    canvas.polygon(
        [
            (x - 0.13 * s, y - 0.8 * s),
            (x + 0.13 * s, y - 0.8 * s),
            (x + 0.11 * s, y - 0.4 * s),
            (x - 0.11 * s, y - 0.4 * s),
        ],
        shirt,
        label,
    )
    canvas.line([(x + 0.12 * s, y - 0.76 * s), (x + 0.24 * s, y - 0.55 * s)], 0.06 * s, shirt, label)
    canvas.line([(x - 0.12 * s, y - 0.76 * s), (x - 0.2 * s, y - 0.48 * s)], 0.06 * s, shirt, label)
    canvas.ellipse(x, y - 0.9 * s, 0.1 * s, 0.11 * s, skin, label)
    canvas.ellipse(x, y - 0.96 * s, 0.1 * s, 0.06 * s, _pick(rng, [(60, 40, 30), (30, 26, 24), (190, 150, 80)]), label)


def umbrella(canvas: Canvas, rng: np.random.Generator, label: int, x: float, y: float, s: float) -> None:
    """Its stick ends at (x, y); the canopy is `s` wide."""
    colours = [(214, 60, 70), (60, 120, 200), (250, 200, 70), (110, 70, 150), (40, 150, 130), (240, 130, 160)]
    first = _pick(rng, colours)
    second = _pick(rng, colours) if rng.random() < 0.5 else _darker(first, 0.84)
    canvas.line([(x, y), (x, y - s * 1.1)], max(0.006, s * 0.035), (90, 70, 60), label)
    rim = y - s * 0.7
    bow = np.linspace(math.pi, 2 * math.pi, 20)
    for share, colour in ((1.0, first), (0.56, second), (0.2, first)):  # the panels, outer ones first
        half = s / 2 * share
        canvas.polygon([(x + math.cos(a) * half, rim + math.sin(a) * s * 0.36) for a in bow.tolist()], colour, label)
    for dx, colour in ((-0.39, first), (-0.19, second), (0.0, first), (0.19, second), (0.39, first)):
        canvas.ellipse(x + dx * s, rim, s * 0.11, s * 0.045, colour, label)


def boat(canvas: Canvas, rng: np.random.Generator, label: int, x: float, y: float, s: float) -> None:
    hull = _pick(rng, [(140, 80, 50), (190, 50, 50), (40, 60, 100), (240, 240, 240)])
    rim = y - 0.2 * s
    if rng.random() < 0.65:  # under sail
        sail = _pick(rng, [(250, 248, 240), (240, 190, 80), (220, 110, 90)])
        canvas.line([(x, rim), (x, y - s)], 0.03 * s, (90, 70, 60), label)
        canvas.polygon(
            [(x + 0.04 * s, y - 0.97 * s), (x + 0.04 * s, rim - 0.06 * s), (x + 0.42 * s, rim - 0.06 * s)], sail, label
        )
        canvas.polygon(
            [(x - 0.04 * s, y - 0.85 * s), (x - 0.04 * s, rim - 0.06 * s), (x - 0.32 * s, rim - 0.06 * s)],
            _darker(sail, 0.9),
            label,
        )
    else:
        canvas.box(x - 0.22 * s, rim - 0.2 * s, 0.44 * s, 0.22 * s, (236, 232, 224), label)
        canvas.box(x - 0.05 * s, rim - 0.42 * s, 0.13 * s, 0.24 * s, _darker(hull), label)
        for dx in (-0.15, 0.0, 0.13):
            canvas.ellipse(x + dx * s, rim - 0.1 * s, 0.035 * s, 0.035 * s, (70, 110, 150), label)
    canvas.polygon([(x - 0.5 * s, rim), (x + 0.5 * s, rim), (x + 0.34 * s, y), (x - 0.36 * s, y)], hull, label)


def fish(canvas: Canvas, rng: np.random.Generator, label: int, x: float, y: float, s: float) -> None:
    colour = _pick(rng, [(250, 140, 50), (240, 90, 90), (170, 190, 200), (250, 210, 70), (110, 200, 160)])
    facing = rng.choice([-1, 1])
    tail = [(-0.4, 0), (-0.75, -0.26), (-0.66, 0), (-0.75, 0.26)]
    canvas.polygon([(x + facing * dx * s, y + dy * s) for dx, dy in tail], _darker(colour, 0.9), label)
    fin = [(-0.1, -0.22), (0.12, -0.42), (0.2, -0.2)]
    canvas.polygon([(x + facing * dx * s, y + dy * s) for dx, dy in fin], _darker(colour, 0.85), label)
    canvas.ellipse(x, y, 0.5 * s, 0.27 * s, colour, label)
    canvas.ellipse(x + facing * 0.3 * s, y - 0.07 * s, 0.07 * s, 0.07 * s, (250, 250, 250), label)
    canvas.ellipse(x + facing * 0.32 * s, y - 0.07 * s, 0.035 * s, 0.035 * s, (20, 20, 20), label)


# ---- things without a label, some of which look a little like one


def bush(canvas: Canvas, rng: np.random.Generator, x: float, y: float, s: float) -> None:
    leaves = _pick(rng, [(70, 130, 70), (100, 140, 66), (180, 110, 50)])
    for dx, r in ((-0.3, 0.24), (0.0, 0.32), (0.3, 0.25)):
        canvas.ellipse(x + dx * s, y - r * s * 0.7, r * s, r * s * 0.8, leaves)


def rock(canvas: Canvas, rng: np.random.Generator, x: float, y: float, s: float) -> None:
    grey = _pick(rng, [(130, 128, 126), (108, 106, 110)])
    canvas.polygon([(x - s * 0.5, y), (x - s * 0.3, y - s * 0.4), (x + s * 0.1, y - s * 0.5), (x + s * 0.5, y)], grey)


def balloon(canvas: Canvas, rng: np.random.Generator, x: float, y: float, s: float) -> None:
    colour = _pick(rng, [(240, 190, 70), (230, 110, 80), (120, 170, 220), (235, 235, 225)])
    canvas.line([(x - s * 0.5, y + s * 0.5), (x, y + s * 1.7), (x + s * 0.5, y + s * 0.5)], 0.005, (80, 70, 60))
    canvas.polygon(
        [
            (x - s * 0.93, y + s * 0.35),
            (x + s * 0.93, y + s * 0.35),
            (x + s * 0.2, y + s * 1.4),
            (x - s * 0.2, y + s * 1.4),
        ],
        colour,
    )
    canvas.ellipse(x, y, s, s, colour)
    canvas.ellipse(x, y, s * 0.42, s, _darker(colour, 0.82))
    canvas.box(x - s * 0.2, y + s * 1.5, s * 0.4, s * 0.32, (130, 90, 60))


def lamp(canvas: Canvas, rng: np.random.Generator, x: float, y: float, s: float) -> None:
    canvas.line([(x, y), (x, y - s)], 0.035 * s, (60, 60, 66))
    if canvas.light < 0.7:
        canvas.shine(x, y - s, s * 0.5, (255, 236, 170))
    canvas.ellipse(x, y - s, s * 0.1, s * 0.1, (255, 244, 200), glowing=canvas.light < 0.7)


def buoy(canvas: Canvas, rng: np.random.Generator, x: float, y: float, s: float) -> None:
    canvas.polygon([(x - s * 0.35, y), (x + s * 0.35, y), (x + s * 0.12, y - s), (x - s * 0.12, y - s)], (210, 60, 50))
    canvas.polygon(
        [
            (x - s * 0.24, y - s * 0.4),
            (x + s * 0.24, y - s * 0.4),
            (x + s * 0.18, y - s * 0.65),
            (x - s * 0.18, y - s * 0.65),
        ],
        (240, 240, 240),
    )
