"""Hostile tables and image files: one line each, no traceback, no endless wait."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from labelwise.data import inspect
from labelwise.data.images import BadImageError, load_image
from labelwise.jobs.parts import FilesPart
from tests import fork_server

pytestmark = pytest.mark.attack


@pytest.fixture
def odd_files(tmp_path: Path) -> Path:
    """Beside a photo: a pipe, a link that leads to itself, a folder, and a device, all called like photos."""
    Image.new("RGB", (8, 8)).save(tmp_path / "good.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    return tmp_path


ODD = {
    "folder.jpg": "a folder, not a file",
    "loop.jpg": "Too many levels of symbolic links",
    "pipe.jpg": "not a regular file",
    "zero.jpg": "not a regular file",
}


def test_pipes_loops_and_devices_are_bad_images(odd_files: Path) -> None:
    for name, reason in ODD.items():
        with pytest.raises(BadImageError, match=reason):
            load_image(odd_files / name)
    part = FilesPart(tuple(str(odd_files / name) for name in (*ODD, "good.jpg")))
    assert [image.problem for image in part.images()] == [*ODD.values(), None]


def test_inspect_and_predict_do_not_wait_for_a_pipe(odd_files: Path, labelwise: fork_server.Command) -> None:
    rows = "".join(f"{name},cat\n" for name in ("good.jpg", *ODD))
    (odd_files / "photos.csv").write_text(f"image,labels\n{rows}")
    assert [bad.reason for bad in inspect(odd_files / "photos.csv").broken or []] == list(ODD.values())
    said = labelwise("predict", odd_files / "pipe.jpg")
    assert said.returncode == 2
    assert f"'{odd_files}/pipe.jpg' cannot be decoded (not a regular file)" in said.stderr
