"""What `train --minutes` measures of the machine and the feature cache."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import labelwise as lw
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.sources import open_data
from labelwise.data.table import LabelTable
from labelwise.features import FeatureCache
from labelwise.training.budget import Work
from labelwise.training.recipe import load_recipe
from labelwise.training.setup import build_model
from labelwise.training.speeds import measure_speeds

TINY: dict[str, Any] = {
    "model.backbone": "test_resnet",
    "model.weights": "none",
    "model.size": 32,
    "model.head": "gap",
    "batch_size": 8,
    "epochs": 1,
}


def _feature_seconds(table: LabelTable) -> float:
    torch.manual_seed(0)  # as in the training: the weights are random
    return measure_speeds(Work.of(table, TINY), table).features[32]


def test_the_features_of_an_earlier_training_take_no_time(sample: Path, tmp_path: Path) -> None:
    assert _feature_seconds(open_data(sample)) > 0
    lw.train(sample, out=tmp_path / "run", **TINY)
    assert _feature_seconds(open_data(sample)) == 0  # no training computes those of the test images


def test_less_than_half_of_the_features_do_not_count(sample: Path) -> None:
    table, recipe = open_data(sample), load_recipe(None, TINY)
    backbone, preprocessing = build_model(recipe, table.labels, table).backbone, Preprocessing(size=32)

    def stored_after(share: float) -> float:
        FeatureCache.build(table.select(range(round(share * len(table)))), backbone, preprocessing)
        return FeatureCache.stored_share(table, backbone, preprocessing, flips=False)

    assert stored_after(0.4) == 0
    assert stored_after(0.6) == pytest.approx(0.6)


def test_a_last_batch_that_is_filled_up_costs_its_images_no_more(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelwise.training.speeds.open_engine", lambda *args, **kwargs: lambda x: time.sleep(0.1))
    table = open_data(sample)
    few = table.select(table.rows("train")[:10])  # a batch of 8 to warm up, and 2 images
    assert 0.1 / 8 <= _feature_seconds(few) < 0.1 / 2
