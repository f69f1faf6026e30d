"""HEIC and AVIF, really encoded: turned by their own rotation boxes, deep, transparent, cut off; and no decoder."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelwise.data import images as heic
from labelwise.data.images import UPRIGHT, BadImageError, Encoded, is_image, load_image

UNDONE_BY = {2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}  # the orientation that turns a picture the other way


def scene() -> Image.Image:
    """No symmetry: every rotation and mirror image of it differs."""
    y, x = np.mgrid[0:48, 0:64]
    return Image.fromarray(np.stack([x * 4, y * 5, x + y], -1).astype(np.uint8))


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    data = BytesIO()
    image.save(data, kind, **options)  # type: ignore[arg-type]
    return data.getvalue()


@pytest.fixture
def pillow_heif() -> object:
    module = pytest.importorskip("pillow_heif")
    module.register_heif_opener()
    return module


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_phone_held_in_any_way(pillow_heif: object, kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = scene().transpose(UPRIGHT[UNDONE_BY[orientation]]) if orientation in UNDONE_BY else scene()
    data = encode(stored, kind, quality=95, exif=exif.tobytes())  # writes the format's own rotation beside EXIF's
    seen = load_image(data)
    assert seen.size == scene().size
    assert np.abs(np.asarray(seen, int) - np.asarray(scene(), int)).mean() < 3  # of 255: turned wrongly it is > 30


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
def test_transparent_and_gray(pillow_heif: object, kind: str) -> None:
    clear = Image.new("RGBA", (64, 64), (255, 0, 0, 0))
    assert np.asarray(load_image(encode(clear, kind))).min() >= 253  # on white
    gray = np.asarray(load_image(encode(Image.new("L", (64, 64), 77), kind, quality=95)))
    assert np.abs(gray.astype(int) - 77).max() <= 2


def test_deep_pictures_are_scaled_not_clipped(pillow_heif: object) -> None:
    deep = np.zeros((64, 64, 3), np.uint16)
    deep[:, :32] = 32768
    data = BytesIO()
    pillow_heif.from_bytes(mode="RGB;16", size=(64, 64), data=deep.tobytes()).save(data, quality=95)  # type: ignore[attr-defined]
    seen = np.asarray(load_image(data.getvalue()), int)
    assert abs(seen[32, 8] - 128).max() <= 2
    assert seen[32, 56].max() <= 2


def test_cut_off(pillow_heif: object) -> None:
    data = encode(scene(), "HEIF")
    for length in (40, len(data) // 2, len(data) - 200):
        with pytest.raises(BadImageError, match="cannot be decoded"):
            load_image(data[:length])


def test_the_decoder_is_imported_for_the_first_heic_only(pillow_heif: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package a HEIC says what to install, whatever its suffix; other pictures do not miss it."""
    data, jpeg = encode(scene(), "HEIF"), encode(scene(), "JPEG")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # an import of it fails now
    heic.missing_decoder.cache_clear()
    try:
        with pytest.raises(BadImageError, match=r"'IMG_1\.JPG' cannot be decoded .*pip install 'labelwise\[heic\]'"):
            load_image(Encoded("IMG_1.JPG", data))
        assert load_image(jpeg).size == scene().size
    finally:
        heic.missing_decoder.cache_clear()


def test_they_count_as_pictures_in_folders(tmp_path: Path) -> None:
    assert all(map(is_image, ("IMG_0001.HEIC", "a.heif", "b.hif", "c.avif")))
