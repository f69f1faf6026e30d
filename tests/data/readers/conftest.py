from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    beside = Path(__file__).resolve().parents[3] / ".." / "shared" / "data"
    folder = Path(os.environ.get("LABELWISE_SHARED_DATA", beside))
    if not folder.is_dir():
        pytest.skip("the shared photos (VOC 2007, tiny COCO) are not on this machine")
    return folder


@pytest.fixture
def touch(tmp_path: Path) -> Callable[..., Path]:
    """Make empty files below tmp_path (readers look whether an image is there, not what is in it)."""

    def make(*names: str) -> Path:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return tmp_path

    return make
