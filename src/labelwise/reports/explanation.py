"""An explanation as one picture: the image, and for each label a map of where the model looked. Drawn with Pillow."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from labelwise.core.errors import LabelwiseError
from labelwise.core.files import WRITTEN_BY, check_replaceable
from labelwise.reports.overlay import COLDEST, data_uri, heat_colour, overlay
from labelwise.runtime.prediction import Prediction

FORMATS = (".png", ".jpg", ".pdf", ".svg")
_COLUMNS = 3
_WIDTH, _TALLEST = 420, 780  # pixels of an image in the picture
_MARGIN, _LINE = 18, 24
_FONTS = ("DejaVuSans.ttf", "Arial.ttf")  # they know more alphabets than Pillow's own
_GREY = (90, 90, 90)


def check_can_draw_maps(path: Path) -> None:
    """Raise an error if no explanation can be drawn into this file; called before the work, not after it."""
    if path.suffix.lower() not in FORMATS:
        raise LabelwiseError(f"cannot draw into {str(path)!r}; name a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file")
    check_replaceable(path)


def save_explanation(
    prediction: Prediction, maps: Mapping[str, NDArray[np.floating]], path: str | Path, what: str = ""
) -> None:
    """Draw an image and a map for each label.

    Args:
        prediction: What the model said about the image.
        maps: A map [H, W] per label.
        path: A .png, .jpg, .pdf or .svg file.
        what: A caption that says what the maps are.
    """
    path = Path(path)
    check_can_draw_maps(path)
    picture = draw_explanation(prediction, maps, what)
    if path.suffix.lower() == ".svg":
        width, height = picture.size
        inside = f'<image href="{data_uri(picture, max(picture.size))}" width="{width}" height="{height}"/>'
        opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
        svg = f"{opening}<!-- {WRITTEN_BY} -->{inside}</svg>\n"
        path.write_text(svg, encoding="utf-8")
    else:
        about = PngInfo()
        about.add_text("Software", WRITTEN_BY)
        # Each format takes what is its own: PNG, JPEG, PDF.
        picture.save(path, quality=90, pnginfo=about, comment=WRITTEN_BY, producer=WRITTEN_BY)


def draw_explanation(prediction: Prediction, maps: Mapping[str, NDArray[np.floating]], what: str) -> Image.Image:
    """The picture itself."""
    image = prediction.open_image()
    scale = min(_WIDTH / image.width, _TALLEST / image.height)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    scores, applies = prediction.all_scores, set(prediction.labels)
    name = Path(str(getattr(prediction.image, "filename", prediction.image))).name
    cells = [(name, "", image)]
    for label, values in maps.items():
        note = "" if label in applies else f"below its threshold {prediction.thresholds[label]:.2f}"
        drawn = overlay(image, values, prediction.preprocessing, score=scores[label])
        cells.append((f"{label}  {scores[label]:.2f}", note, drawn))

    columns = min(_COLUMNS, len(cells))
    wide, high = _WIDTH + _MARGIN, size[1] + 2 * _LINE + _MARGIN  # of a cell
    rows = ceil(len(cells) / columns)
    picture = Image.new("RGB", (columns * wide + _MARGIN, rows * high + 3 * _LINE), "white")
    pen = ImageDraw.Draw(picture)
    for number, (title, note, shown) in enumerate(cells):
        left, top = _MARGIN + number % columns * wide, _MARGIN // 2 + number // columns * high
        pen.text((left, top), title, "black", _font(17))
        pen.text((left, top + _LINE), note, _GREY, _font(14))
        picture.paste(shown.resize(size, Image.Resampling.LANCZOS), (left, top + 2 * _LINE))
    _draw_legend(picture, pen, rows * high + _LINE // 2, what)
    return picture


def _draw_legend(picture: Image.Image, pen: ImageDraw.ImageDraw, top: int, what: str) -> None:
    """A bar from the coldest to the warmest colour, its ends named, and the captions."""
    font, middle = _font(14), picture.width // 2
    length = min(300, picture.width // 3)
    bar = heat_colour(np.linspace(COLDEST, 1, length))[None].astype(np.uint8)  # [1, length, 3]
    picture.paste(Image.fromarray(bar).resize((length, 12)), (middle - length // 2, top + 4))
    pen.text((middle - length // 2 - 8, top + 10), "attended least", _GREY, font, anchor="rm")
    pen.text((middle + length // 2 + 8, top + 10), "attended most", _GREY, font, anchor="lm")
    captions = filter(None, (what, "a map is as strong as its label's score"))
    pen.text((middle, top + 10 + _LINE), "; ".join(captions), _GREY, font, anchor="mm")


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    for name in _FONTS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:  # not on this machine
            continue
    return ImageFont.load_default(size)
