from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def touch(tmp_path: Path) -> Callable[..., Path]:
    """Make empty files below tmp_path (readers look whether an image is there, not what is in it)."""

    def make(*names: str) -> Path:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return tmp_path

    return make
