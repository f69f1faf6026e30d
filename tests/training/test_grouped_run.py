"""Runs whose labels share queries by a rule: it sees the training photos alone, and the model keeps the groups."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.data import open_data
from labelwise.data.sample import make_sample
from labelwise.training import load_recipe
from labelwise.training.grouping import balanced_groups
from labelwise.training.statistics import cooccurrence_vectors
from labelwise.training.train import train


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make_sample(folder := tmp_path_factory.mktemp("sample"), images=40, size=32)
    return folder / "labels.csv"


@pytest.mark.parametrize("kind", ["words", "co-occurrence"])
def test_the_model_keeps_its_groups(kind: str, sample: Path, tmp_path: Path) -> None:
    table = open_data(sample).select("train")
    vectors = torch.randn(len(table.labels), 12, generator=torch.Generator().manual_seed(0))
    save_file(dict(zip(table.labels, vectors.unbind(), strict=True)), tmp_path / "words.safetensors")
    changes = {
        "data.source": str(sample),
        "model.backbone": "test_resnet",
        "model.weights": "none",
        "model.size": 32,
        "model.freeze": "none",
        "model.head": "ml-decoder",
        "model.options": {"dim": 16, "attention_heads": 2, "feedforward": 32, "groups": 4},
        "model.words": {"source": str(tmp_path / "words.safetensors")},
        "model.grouping": kind,
        "epochs": 1,
        "workers": 0,
    }
    train(load_recipe(None, changes), tmp_path / "run")
    head = lw.load_model(tmp_path / "run").head
    expected = balanced_groups(vectors if kind == "words" else cooccurrence_vectors(table), 4)
    assert head.label_slot.tolist() == expected.tolist()
    assert head.label_slot.tolist() != lw.heads.queries.label_slots(len(table.labels), 0).tolist()
    with pytest.raises(LabelwiseError, match="fewer groups than the 13 labels"):
        train(load_recipe(None, {**changes, "model.options": {"dim": 16}, "model.head": "hsq"}), tmp_path / "b")
