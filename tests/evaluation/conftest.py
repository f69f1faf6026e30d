"""A small sample set and a small model with random weights, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from labelwise.data.sample import make_sample
from labelwise.data.table import LabelTable
from labelwise.model.model import LabelModel, create_model


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> LabelTable:
    return make_sample(tmp_path_factory.mktemp("sample"), images=50, size=64)


@pytest.fixture(scope="session")
def hsq(sample: LabelTable) -> LabelModel:
    torch.manual_seed(0)
    options = {"dim": 16, "widths": [8], "shared_experts": 2}
    return create_model("test_resnet", "hsq", sample.labels, weights="none", size=64, **options).eval()


@pytest.fixture
def broken(sample: LabelTable, tmp_path: Path) -> LabelTable:
    """The first six images of the sample set, of which the third is cut off."""
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(Path(sample.images[2]).read_bytes()[:300])
    images = [*sample.images[:2], str(cut), *sample.images[3:6]]
    return LabelTable.from_dense(images, sample.targets()[:6], sample.labels, source="photos.csv")
