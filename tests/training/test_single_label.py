"""One label per picture, from a folder per class to a prediction: the same heads, softmax or sigmoids."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import labelwise as lw
from labelwise.data import open_data
from labelwise.evaluation import evaluate, predict_logits
from labelwise.training import Recipe, load_recipe
from labelwise.training.train import train

COLOURS = {"blue": (30, 60, 220), "green": (20, 200, 40), "red": (220, 30, 30)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("colours"), np.random.default_rng(0)
    for split, number in (("train", 8), ("val", 4), ("test", 4)):
        for name, colour in COLOURS.items():
            (root / split / name).mkdir(parents=True)
            for i in range(number):
                pixels = np.clip(np.array(colour) + rng.normal(0, 25, (32, 32, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.png")
    return root


def recipe(folder: Path, head: str, loss: str) -> Recipe:
    changes = {
        "data.source": f"imagefolder:{folder}",
        "model.backbone": "test_resnet",
        "model.weights": "none",
        "model.size": 32,
        "model.stage": -2,
        "model.freeze": "none",
        "model.head": head,
        "model.options": {} if head == "gap" else {"dim": 16, "attention_heads": 2, "feedforward": 32},
        "model.task": "single-label",
        "model.resize": "crop",
        "model.crop_ratio": 0.95,
        "model.drop_path": 0.05,
        "loss.name": loss,
        "loss.options": {"label_smoothing": 0.1},
        "optimizer.name": "lamb",
        "optimizer.lr": 2e-2,
        "augmentation": {"cutout": 0, "policy": "randaugment-timm", "strength": 3, "repeats": 2},
        "epochs": 4,
        "batch_size": 6,
        "workers": 0,
    }
    return load_recipe(None, changes)


@pytest.mark.parametrize(("head", "loss"), [("gap", "softmax-cross-entropy"), ("ml-decoder", "bce")])
def test_folders_to_predictions(head: str, loss: str, folder: Path, tmp_path: Path) -> None:
    train(recipe(folder, head, loss), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all({"accuracy_top1", "accuracy_top5", "mAP"} <= set(row) for row in rows)
    assert all(row["accuracy_top5"] == 100 for row in rows)  # there are three labels
    assert max(row["accuracy_top1"] for row in rows) > 50  # one in three by chance
    model = lw.load_model(tmp_path / "run")
    assert model.config.thresholds is None
    assert model.config.results["accuracy_top1"] == max(row["accuracy_top1"] for row in rows)  # the best epoch is kept
    assert (model.config.preprocessing.crop_ratio, model.config.backbone.drop_path) == (0.95, 0.05)

    table = open_data(f"imagefolder:{folder}").select("test")
    scores = evaluate(model, table, bootstrap=0, workers=0, progress=False).to_dict()
    best = predict_logits(model, table, workers=0, progress=False).logits.argmax(axis=1)
    assert scores["accuracy_top1"] == pytest.approx(100 * (best == table.columns).mean())
    predictions = lw.load(tmp_path / "run").predict(list(table.images))
    assert [prediction.labels for prediction in predictions] == [[table.labels[i]] for i in best]
    assert sum(predictions[0].all_scores.values()) == pytest.approx(1, abs=1e-5)


def test_a_stopped_run_with_lamb_and_repeats_goes_on_exactly(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    from labelwise.training.loop import Trainer

    wanted = recipe(folder, "gap", "bce").model_copy(update={"epochs": 2})
    train(wanted, tmp_path / "whole")
    real = Trainer._validate

    def stops(self: Trainer, epoch: int) -> dict[str, object]:
        if epoch == 2:
            raise RuntimeError("power cut")
        return real(self, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_validate", stops)
        with pytest.raises(RuntimeError, match="power cut"):
            train(wanted, tmp_path / "stopped")
    train(wanted, tmp_path / "stopped", resume=True)
    first, second = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "stopped"))
    assert all((first[name] == second[name]).all() for name in first)
