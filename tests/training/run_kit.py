"""A recipe that trains in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labelwise.training import Recipe, load_recipe


def recipe(data: Path, **changes: Any) -> Recipe:
    small = {
        "data.source": str(data),
        "model.backbone": "test_resnet",
        "model.weights": "none",
        "model.size": 32,
        "model.head": "hsq",
        "model.options": {"dim": 16, "attention_heads": 2, "shared_experts": 2},
        "model.freeze": "none",
        "epochs": 2,
        "batch_size": 8,
        "workers": 0,
        "precision": "32-true",  # on every machine
        "refit": 0.0,
    }
    return load_recipe(None, small | changes)
