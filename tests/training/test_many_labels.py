"""10,000 labels through the real commands."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from labelwise.data.table import LabelTable
from labelwise.training.batches import FeatureBatches, Share
from many_labels import measure, write_data


@pytest.mark.slow
@pytest.mark.parametrize("head", ["ml-decoder", "grouped-hsq"])
def test_memory_of_train_evaluate_and_predict(head: str, tmp_path: Path) -> None:
    data = write_data(tmp_path, images=400, labels=10_000)
    peaks = measure(head, data, tmp_path)
    assert max(peaks[command] for command in ("train", "evaluate", "predict")) < 3000


class Maps:
    """Stands for a feature cache of 200,000 photos."""

    rows = np.arange(200_000)

    def batch(self, rows: np.ndarray, flip: object = False) -> np.ndarray:
        return rows


def test_targets_of_cached_features_are_made_batch_by_batch() -> None:
    """200,000 photos x 10,000 labels are 2 GB as a dense array, and next to nothing as a table."""
    names = [f"label {i}" for i in range(10_000)]
    few = LabelTable.from_lists([f"{i}.jpg" for i in range(20)], [names[i::3000] for i in range(20)], names)
    many = few.select(np.arange(200_000) % 20)
    batches = FeatureBatches(Maps(), None, (many, None), 8, 0, Share(), flip=0.0)  # type: ignore[arg-type]
    tracemalloc.start()
    rows, targets, _ = next(iter(batches.epoch(0)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6
    assert targets.shape == (8, 10_000)
    for row, target in zip(np.asarray(rows), targets.numpy(), strict=True):
        np.testing.assert_array_equal(target, few.target(int(row) % 20))
