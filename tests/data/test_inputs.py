"""Images that are no files: arrays, tensors, bytes, URLs, patterns."""

import io
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from labelwise.core.errors import LabelwiseError
from labelwise.data.decode import decode, fetch, find_images
from labelwise.data.images import BadImageError, Encoded

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)  # [H, W, 3]


def only(source: Any) -> np.ndarray:
    (found,) = find_images(source)
    return np.asarray(decode(found))


@pytest.mark.parametrize(
    "source",
    [
        PIXELS,
        PIXELS.transpose(2, 0, 1),
        PIXELS.astype(np.float32) / 255,
        PIXELS.astype(np.int64),
        PIXELS.astype(np.uint16) * 257,
        PIXELS[None],
        torch.from_numpy(PIXELS),
        torch.from_numpy(PIXELS).permute(2, 0, 1),
        torch.from_numpy(PIXELS).permute(2, 0, 1)[None].double().div(255).requires_grad_(),
        Image.fromarray(PIXELS),
        [Image.fromarray(PIXELS)],
        (row for row in [PIXELS]),
    ],
)
def test_one_image_in_many_forms(source: Any) -> None:
    np.testing.assert_array_equal(only(source), PIXELS)


def test_bytes_grey_transparent_and_yes_or_no() -> None:
    content = io.BytesIO()
    Image.fromarray(PIXELS).save(content, "PNG")
    np.testing.assert_array_equal(only(content.getvalue()), PIXELS)
    np.testing.assert_array_equal(only(bytearray(content.getvalue())), PIXELS)
    grey = PIXELS[:, :, 0]
    for form in (grey, grey[:, :, None], grey[None]):
        np.testing.assert_array_equal(only(form), np.repeat(grey[:, :, None], 3, axis=2))
    assert (only(np.zeros((2, 2, 4), np.uint8)) == 255).all()  # transparent: white
    assert only(np.eye(2, dtype=bool))[:, :, 0].tolist() == [[255, 0], [0, 255]]


def test_open_files(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.fromarray(PIXELS).save(file)
    with file.open("rb") as opened:
        (found,) = find_images(opened)
    assert isinstance(found, Encoded)
    assert found.name == str(file)
    np.testing.assert_array_equal(np.asarray(decode(found)), PIXELS)
    np.testing.assert_array_equal(only([io.BytesIO(file.read_bytes())]), PIXELS)
    with file.open() as text, pytest.raises(LabelwiseError, match="is open as text; open images with mode 'rb'"):
        only(text)


def test_batches_and_mixed_lists() -> None:
    assert len(list(find_images(np.zeros((4, 5, 7, 3), np.uint8)))) == 4
    assert len(list(find_images(torch.zeros(2, 3, 5, 7)))) == 2
    assert len(list(find_images([PIXELS, ["a.jpg", Path("b.jpg")], torch.zeros(2, 3, 5, 7)]))) == 5


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (7, r"^7 \(int\) is not an image; give a path"),
        (None, r"^None \(NoneType\) is not an image"),
        ({"image": "a.jpg"}, r"^{'image': 'a.jpg'} \(dict\) is not an image"),
        ([["a.jpg", 1.5]], r"^1.5 \(float\) is not an image"),
        (np.zeros(5), r"shape \[5\] is not an image"),
        (np.zeros((5, 7, 2)), r"shape \[5, 7, 2\]"),
        (np.zeros((0, 7, 3)), r"shape \[0, 7, 3\]"),
        (np.full((5, 7, 3), "x"), "is not an image"),
        (PIXELS.astype(np.float32), "must lie between 0 and 1.*before it is normalised"),
        (torch.randn(3, 5, 7), "must lie between 0 and 1, this one has values from -"),
        (np.full((5, 7, 3), np.nan), "must lie between 0 and 1"),
        (np.full((5, 7, 3), 300), "must lie between 0 and 255"),
    ],
)
def test_what_is_no_image_is_told_in_one_line(wrong: Any, told: str) -> None:
    with pytest.raises(LabelwiseError, match=told) as caught:
        list(find_images(wrong))
    assert "\n" not in str(caught.value)


def test_frames_with_a_column_of_paths(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    paths = ["photos/b.jpg", "https://example.org/a.png"]
    frame = pandas.DataFrame({"id": [1, 2], "title": ["Ann's cat", "a.b"], "path": paths, "labels": ["cat", "dog"]})
    for images in (frame, frame["path"], frame["path"].to_numpy(), np.array(paths)):
        assert list(find_images(images)) == paths
    encoded = io.BytesIO()
    Image.fromarray(PIXELS).save(encoded, "PNG")
    contents = pandas.DataFrame({"name": ["one"], "content": [encoded.getvalue()]})
    np.testing.assert_array_equal(only(contents), PIXELS)
    without_ending = tmp_path / "0001"
    without_ending.write_bytes(encoded.getvalue())
    np.testing.assert_array_equal(only(pandas.DataFrame({"ImageID": [str(without_ending)]})), PIXELS)
    with pytest.raises(LabelwiseError, match=r"no column of the table \(id, title\) holds images"):
        list(find_images(frame[["id", "title"]]))
    frame.loc[1, "path"] = None
    with pytest.raises(LabelwiseError, match="is not an image"):
        list(find_images(frame))


def test_patterns_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.png", "a.png", "notes.txt", "more/c.png", "d[1].png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(PIXELS).save(tmp_path / name, "PNG")

    def names(pattern: str) -> list[str]:
        return [Path(str(found)).name for found in find_images(pattern)]

    assert names(f"{tmp_path}/?.png") == ["a.png", "b.png"]
    assert names(f"{tmp_path}/**/*.png") == ["a.png", "b.png", "d[1].png", "c.png"]
    assert sorted(names(f"{tmp_path}/**")) == ["a.png", "b.png", "c.png", "d[1].png"]  # each once
    assert names(f"{tmp_path}/*") == ["a.png", "b.png", "d[1].png", "c.png"]  # what is in a folder belongs to it
    assert names(f"{tmp_path}/d[1].png") == ["d[1].png"]
    assert names(f"{tmp_path}/d[2].png") == ["d[2].png"]  # no pattern, but a file that is not there
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names("~/more") == ["c.png"]
    with pytest.raises(LabelwiseError, match=re.escape(f"no image matches '{tmp_path}/*.gif'")):
        names(f"{tmp_path}/*.gif")


class _Images(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path != "/a.png":
            self.send_error(404, "Not Found")
            return
        content = io.BytesIO()
        Image.fromarray(PIXELS).save(content, "PNG")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(content.getvalue())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Images) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_urls(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    np.testing.assert_array_equal(only(f"{address}/a.png"), PIXELS)
    with pytest.raises(BadImageError, match="the server answers 404"):
        only(f"{address}/b.png")
    with pytest.raises(BadImageError, match="more than 0 MB"):
        fetch(f"{address}/a.png", max_bytes=10)
    with pytest.raises(BadImageError, match="cannot be downloaded"):
        fetch("http://127.0.0.1:1/a.png")
    with pytest.raises(BadImageError, match="cannot be downloaded"):
        fetch("http://")
    ticks = iter(range(0, 1000, 100))
    monkeypatch.setattr("labelwise.data.decode.time.monotonic", lambda: next(ticks))
    with pytest.raises(BadImageError, match="not downloaded within 30 s"):
        fetch(f"{address}/a.png")
