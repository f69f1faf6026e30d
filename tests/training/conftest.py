"""A small sample set, and a feature cache for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelwise.data.sample import make_sample


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    make_sample(folder, images=60, size=48)
    return folder / "labels.csv"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
