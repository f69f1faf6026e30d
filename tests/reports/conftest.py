"""A sample set and runs with random weights, with names that try to break out of the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from labelwise.data.manifests import write_manifest
from labelwise.data.sample import make_sample
from labelwise.data.table import LabelTable
from report_kit import EVIL, make_run


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> LabelTable:
    """90 pictures in a folder whose name is markup, three labels whose names are, and one picture that is broken."""
    folder = tmp_path_factory.mktemp("data") / "photos <b>&amp;"
    table = make_sample(folder, images=90, size=64)
    Path(table.images[3]).write_bytes(b"no picture")  # in the test split
    table = replace(table, labels=tuple(EVIL.get(name, name) for name in table.labels))
    (folder / "labels.csv").unlink()
    write_manifest(table, folder / "labels.csv")
    return replace(table, source=str(folder / "labels.csv"))


@pytest.fixture(scope="session")
def runs(photos: LabelTable, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    data = Path(photos.source)
    return [
        make_run(root / "gap <u>run", data, photos.labels),
        make_run(root / "hsq", data, photos.labels, "hsq"),
        make_run(root / "gap-seed-1", data, photos.labels, seed=1),
        make_run(root / "gap-96", data, photos.labels, size=96),
    ]
