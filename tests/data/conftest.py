"""A cache of its own for each test: indices and copies of shards go there."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
