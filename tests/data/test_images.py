"""Every odd picture file is really written, decoded, and compared pixel by pixel with what a person should see."""

from __future__ import annotations

import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from labelwise.core.errors import LabelwiseError
from labelwise.data.images import BadImageError, load_image


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    data = BytesIO()
    image.save(data, kind, **options)  # type: ignore[arg-type]
    return data.getvalue()


def gradient(width: int = 64, height: int = 48) -> Image.Image:
    """No symmetry: every rotation and mirror image of it differs."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1).astype(np.uint8))


def pixels(data: bytes) -> np.ndarray:
    image = load_image(data)
    assert image.mode == "RGB"
    return np.asarray(image)


def test_rgb_png_is_unchanged() -> None:
    np.testing.assert_array_equal(pixels(encode(gradient(), "PNG")), np.asarray(gradient()))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bit_is_scaled_not_clipped(kind: str) -> None:
    deep = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)  # v * 257 for v in 0..255: exact in 8 bits
    result = pixels(encode(Image.fromarray(deep), kind))
    np.testing.assert_array_equal(result[..., 0], np.arange(256).reshape(16, 16))
    np.testing.assert_array_equal(result[..., 0], result[..., 2])


def test_many_deep_pixels_take_little_memory() -> None:
    values = (np.arange(3000 * 2000) % 65536).astype(np.uint16).reshape(2000, 3000)
    data = encode(Image.fromarray(values), "PNG")
    tracemalloc.start()
    picture = load_image(data)
    assert tracemalloc.get_traced_memory()[1] < 5 * values.size  # without Pillow's own; it was 25
    tracemalloc.stop()
    np.testing.assert_array_equal(np.asarray(picture)[:, :, 0], (values / 65535 * 255).round().astype(np.uint8))


@pytest.mark.parametrize("white", [1.0, 255.0, 65535.0])
def test_float_tiff(white: float) -> None:
    values = np.linspace(0, white, 16, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(
        pixels(encode(Image.fromarray(values), "TIFF"))[..., 1], np.arange(0, 256, 17).reshape(4, 4)
    )


def test_16_bit_rgb_png() -> None:
    # Pillow cannot write one: build the file from its chunks. One row: (0, 128 * 257, 65535), (65535, 0, 257).
    row = b"\0" + struct.pack(">6H", 0, 128 * 257, 65535, 65535, 0, 257)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(row)), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
    assert pixels(data).tolist() == [[[0, 128, 255], [255, 0, 1]]]


def test_grayscale_one_bit_and_ycbcr() -> None:
    assert pixels(encode(Image.new("L", (8, 8), 77), "PNG"))[0, 0].tolist() == [77, 77, 77]
    assert pixels(encode(Image.new("1", (8, 8), 1), "PNG"))[0, 0].tolist() == [255, 255, 255]
    assert np.abs(pixels(encode(Image.new("L", (8, 8), 77), "JPEG")).astype(int) - 77).max() <= 1


def without_adobe_marker(jpeg: bytes) -> bytes:
    start = jpeg.index(b"\xff\xee")
    length = struct.unpack(">H", jpeg[start + 2 : start + 4])[0]
    return jpeg[:start] + jpeg[start + 2 + length :]


def test_cmyk_jpeg_adobe_inverted_and_plain() -> None:
    cyan = encode(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG", quality=95)
    assert b"Adobe" in cyan  # its ink values are stored inverted
    np.testing.assert_allclose(pixels(cyan)[8, 8], [0, 255, 255], atol=2)
    # The same stored numbers without the marker mean ink as it is: no cyan, full magenta, yellow and black.
    plain = without_adobe_marker(cyan)
    assert b"Adobe" not in plain
    np.testing.assert_allclose(pixels(plain)[8, 8], [0, 0, 0], atol=2)
    inverted_ink = ImageOps.invert(Image.new("L", (16, 16), 255))  # 0
    red_ink = Image.merge(
        "CMYK", [Image.new("L", (16, 16), 255), inverted_ink, inverted_ink, Image.new("L", (16, 16), 255)]
    )
    np.testing.assert_allclose(
        pixels(without_adobe_marker(encode(red_ink, "JPEG", quality=95)))[8, 8], [255, 0, 0], atol=2
    )
    np.testing.assert_allclose(pixels(encode(Image.new("CMYK", (8, 8), (0, 0, 255, 0)), "TIFF"))[0, 0], [255, 255, 0])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation(orientation: int, kind: str) -> None:
    # A camera held at that orientation stores the scene the other way round: undo what a viewer will do.
    undo: dict[int, Image.Transpose] = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    scene = gradient()
    stored = scene.transpose(undo[orientation]) if orientation in undo else scene
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    np.testing.assert_array_equal(pixels(encode(stored, kind, exif=exif, **options)), np.asarray(scene))


def test_damaged_exif_does_not_cost_the_picture() -> None:
    jpeg = encode(gradient(), "JPEG", quality=95)
    damaged = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", 2 + 6 + 6) + b"Exif\0\0" + b"\xff" * 6 + jpeg[2:]
    np.testing.assert_array_equal(pixels(damaged), pixels(jpeg))


def test_transparency_goes_on_white() -> None:
    assert pixels(encode(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "PNG"))[0, 0].tolist() == [255, 255, 255]
    np.testing.assert_allclose(
        pixels(encode(Image.new("RGBA", (4, 4), (0, 0, 255, 128)), "PNG"))[0, 0], [127, 127, 255]
    )
    np.testing.assert_allclose(pixels(encode(Image.new("LA", (4, 4), (0, 51)), "PNG"))[0, 0], [204, 204, 204])
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    assert pixels(encode(palette, "PNG")).tolist() == [[[10, 20, 30], [200, 100, 50]]]
    assert pixels(encode(palette, "PNG", transparency=0)).tolist() == [[[255, 255, 255], [200, 100, 50]]]
    keyed = encode(Image.new("RGB", (2, 2), (1, 2, 3)), "PNG", transparency=(1, 2, 3))
    assert pixels(keyed)[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animation_gives_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert Image.open(BytesIO(data)).n_frames == 3  # type: ignore[attr-defined]
    assert pixels(data)[8, 8].tolist() == [255, 0, 0]


def test_large_jpegs_are_scaled_by_the_decoder() -> None:
    big = gradient(320, 200).resize((3200, 2000), Image.Resampling.BICUBIC)
    data = encode(big, "JPEG", quality=90)
    assert load_image(data, min_side=224).size == (400, 250)  # 1/8: the shorter side is still at least 224
    assert load_image(data, min_side=251).size == (800, 500)
    assert load_image(data, min_side=1500).size == load_image(data).size == (3200, 2000)
    small, full = (load_image(data, min_side=n).resize((224, 224), Image.Resampling.BILINEAR) for n in (224, 4000))
    assert np.abs(np.asarray(small, np.float32) - np.asarray(full, np.float32)).mean() < 1.5  # of 255
    assert load_image(encode(big, "PNG"), min_side=224).size == (3200, 2000)
    exif = Image.Exif()
    exif[0x0112] = 6
    assert load_image(encode(big, "JPEG", exif=exif), min_side=224).size == (250, 400)

    def seconds(min_side: int | None) -> float:
        start = time.perf_counter()
        load_image(data, min_side=min_side)
        return time.perf_counter() - start

    # Measured 4 to 5 times faster; half of that leaves room for a busy machine.
    assert min(seconds(224) for _ in range(5)) * 2 < min(seconds(None) for _ in range(5))


BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut.jpg": (lambda: encode(gradient(), "JPEG")[:700], "truncated file"),
    "cut.png": (lambda: encode(gradient(), "PNG")[:100], "truncated file"),
    "cut.webp": (lambda: encode(gradient(), "WEBP")[:200], ""),
    "cut.gif": (lambda: encode(gradient(), "GIF")[:900], ""),
    "header.jpg": (lambda: encode(gradient(), "JPEG")[:20], ""),
    "empty.jpg": (lambda: b"", "empty file"),
    "text.jpg": (lambda: b"<html>404 not found</html>", "not an image of a known format"),
    "postscript.jpg": (lambda: encode(gradient(), "EPS"), "not an image of a known format"),
    "zeros.jpg": (lambda: bytes(5000), "not an image of a known format"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_say_path_and_reason(name: str, tmp_path: Path) -> None:
    make, reason = BROKEN[name]
    (tmp_path / name).write_bytes(make())
    with pytest.raises(BadImageError) as caught:
        load_image(tmp_path / name)
    assert isinstance(caught.value, LabelwiseError)
    assert str(caught.value).startswith(f"image {str(tmp_path / name)!r} cannot be decoded (")
    assert reason in caught.value.reason
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(BadImageError, match="no such file"):
        load_image(tmp_path / "nowhere.jpg")
    with pytest.raises(BadImageError, match="a folder, not a file"):
        load_image(tmp_path)


def test_decompression_bomb() -> None:
    # 50,000 x 50,000 one-bit pixels compress to a small file and would open as 7.5 GB of RGB.
    rows = zlib.compressobj(9)
    line = bytes(1 + 50_000 // 8)
    body = b"".join(rows.compress(line * 100) for _ in range(500)) + rows.flush()
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 1, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part))
        for name, part in [(b"IHDR", header), (b"IDAT", body), (b"IEND", b"")]
    )
    with pytest.raises(BadImageError, match="safety limit"):
        load_image(data)
