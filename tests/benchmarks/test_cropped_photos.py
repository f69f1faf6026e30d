"""benchmarks/cropped_photos.py: crops keep the labels of their photo, and what is measured on stays as it is."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from labelwise.data.sample import make_sample
from labelwise.data.sources import open_data

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_crops_of_train_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    cropped_photos = import_module("cropped_photos")
    before = open_data(make_sample(tmp_path / "sample", images=20, size=64).source)
    after = open_data(cropped_photos.write_crops(before.source, tmp_path / "crops"))
    train, val = before.select("train"), before.select("val")
    assert len(after.rows("train")) == 4 * len(train)
    assert after.select("val").targets().tolist() == val.targets().tolist()
    for row, image in enumerate(after.select("train").images):
        assert after.target(row).tolist() == train.target(row // 4).tolist()
        width, height = Image.open(image).size
        assert width * height >= (64 * 64 if row % 4 == 0 else 0.45 * 64 * 64)  # sides are whole pixels
