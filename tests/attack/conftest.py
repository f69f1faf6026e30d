"""Small models to serve, which several files attack."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.serving_kit import write_tiny_export


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_export(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="session")
def wordy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose labels make 2 MB of each answer to GET /models."""
    labels = [f"{number} {'x' * 200_000}" for number in range(5)]
    return write_tiny_export(tmp_path_factory.mktemp("served") / "wordy", labels)
