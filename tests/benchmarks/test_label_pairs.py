"""benchmarks/label_pairs.py: gains of labels by their partners, with both chances; end to end, tiny."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labelwise.data.sample import make_sample

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("label_pairs")


def measured(pairs: Any, value: float, spread: float = 0.0, seed: int = 0) -> Any:
    return pairs.Measured(value, value + np.random.default_rng(seed).normal(0, spread, 2000))


def test_gains_are_those_over_the_mean_of_the_seeds_alone(pairs: Any) -> None:
    alone = {
        "a": [measured(pairs, value) for value in (49.0, 50.0, 51.0)],
        "b": [measured(pairs, value) for value in (69.0, 70.0, 71.0)],
    }
    paired = {("a", "b"): measured(pairs, 60.0), ("b", "a"): measured(pairs, 69.0)}
    found = pairs.transfer(("a", "b"), alone, paired)
    assert found["seed_sd"] == pytest.approx(1.0)
    assert [(row["label"], row["gain"]) for row in found["gains"]] == [("a", 10.0), ("b", -1.0)]
    assert [row["significant"] for row in found["gains"]] == [True, False]
    half = 1.96 * np.sqrt(1 + 1 / 3)  # one seed of the pair, three alone; no chance of the photos here
    assert found["gains"][1]["low"] == pytest.approx(-1 - half, abs=0.01)
    assert found["mean"]["gain"] == pytest.approx(4.5)
    assert found["mean"]["high"] - 4.5 == pytest.approx(half / np.sqrt(2), abs=0.01)  # of two independent gains
    counts = {key: found[key] for key in ("pairs", "both_gain", "one_gains", "none_gains")}
    assert counts == {"pairs": 1, "both_gain": 0, "one_gains": 1, "none_gains": 0}
    assert (found["significant_gains"], found["significant_losses"]) == (1, 0)


def test_photos_that_move_both_models_alike_do_not_widen_the_interval(pairs: Any) -> None:
    alone = {name: [measured(pairs, value, spread=3.0) for value in (49.99, 50.01)] for name in "ab"}
    paired = {("a", "b"): measured(pairs, 51.0, spread=3.0), ("b", "a"): measured(pairs, 51.0, spread=3.0, seed=1)}
    alike, other = pairs.transfer(("a", "b"), alone, paired)["gains"]
    assert alike["low"] == pytest.approx(1.0, abs=0.1)
    assert other["low"] < -5


def test_models_are_kept_and_measured(pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = make_sample(tmp_path / "sample", images=60, size=32)
    always = {"model.backbone": "test_resnet", "model.weights": "none", "model.size": 32, "model.freeze": "backbone"}
    options = {"model.options.dim": 16, "model.options.attention_heads": 2, "batch_size": 16, "augmentation.flip": 0.0}
    tiny = {
        "always": always,
        "stages": {"test": {"data.train": "train"}},
        "rows": {head: {"set": {"model.head": head, **options}} for head in pairs.HEADS},
    }
    monkeypatch.setattr(pairs, "read_study", lambda name: tiny)
    monkeypatch.setattr(pairs, "LABELS", 2)
    monkeypatch.setattr(pairs, "SEEDS", 2)
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
    out, report = tmp_path / "pairs", tmp_path / "pairs.json"
    command = ["label_pairs.py", "--data", str(sample.source), "--out", str(out), "--json", str(report)]
    monkeypatch.setattr(sys, "argv", command)
    torch.manual_seed(0)  # of the backbone, which has no pretrained weights here
    pairs.main()
    files = sorted(file.name for file in out.iterdir())
    assert len(files) == 2 * (2 * 2 + 1)  # heads x (labels x seeds + pairs)
    first = json.loads(report.read_text())
    assert {head: found["pairs"] for head, found in first["heads"].items()} == {"q2l": 1, "hsq": 1}
    (out / files[0]).unlink()  # only this one is trained again, and gives the same
    torch.manual_seed(0)
    pairs.main()
    assert json.loads(report.read_text()) == first
