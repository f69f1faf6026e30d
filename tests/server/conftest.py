"""What the tests of the server share. Most use a tiny exported model (see `serving_kit`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from labelwise.data.sample import make_sample
from labelwise.engines.load import load
from labelwise.runtime.tagger import Tagger
from serving_kit import RunningServer, png, running, write_tiny_export


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("fastapi", "uvicorn", "onnx", "onnxruntime"):
        pytest.importorskip(package, reason="needs the extras serve and onnx")
    return write_tiny_export(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="session")
def tiny_tagger(tiny: Path) -> Tagger:
    return load(tiny)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return list(make_sample(tmp_path_factory.mktemp("photos"), images=12, size=96).images)


@pytest.fixture(scope="session")
def tiny_server(tiny: Path) -> Iterator[RunningServer]:
    """With narrow limits, so that a small request can go beyond each of them."""
    limits = ("--max-bytes=1000000", "--max-pixels=9000000", "--max-files=8", "--max-wait=200")
    with running(tiny, f"second={tiny}", *limits) as server:
        yield server


@pytest.fixture(scope="session")
def slow_picture() -> bytes:
    """Takes about a tenth of a second to decode, and has few bytes."""
    return png(2900, 2900)
