"""Query augmentation inside whole runs: it trains, repeats, resumes, and leaves a model that knows nothing of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import SAMPLE_LABELS, make_sample
from labelwise.training import Recipe, load_recipe
from labelwise.training.check import check
from labelwise.training.loop import Trainer
from labelwise.training.train import train

OPTIONS = {
    "dim": 16,
    "attention_heads": 2,
    "queries": "words",
    "classifier": "shared",
    "query_noise": 0.2,
    "random_queries": 3,
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    make_sample(folder, images=60, size=48)
    vectors = torch.randn(len(SAMPLE_LABELS), 8, generator=torch.Generator().manual_seed(0))
    save_file(dict(zip(SAMPLE_LABELS, vectors.unbind(), strict=True)), folder / "words.safetensors")
    return folder


def recipe(here: Path, **changes: Any) -> Recipe:
    small = {
        "data.source": str(here / "labels.csv"),
        "model.backbone": "test_resnet",
        "model.weights": "none",
        "model.size": 32,
        "model.head": "ml-decoder",
        "model.options": OPTIONS,
        "model.words": str(here / "words.safetensors"),
        "epochs": 2,
        "batch_size": 16,
        "workers": 0,
        "mixup": 0.2,
    }
    return load_recipe(None, small | changes)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def test_an_augmented_run_repeats_resumes_and_takes_other_labels(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = recipe(here, ema=0.9, accumulate=2, checkpoint_minutes=1e-9)
    model = train(wanted, tmp_path / "whole").model()
    seen: list[int] = []
    real = Trainer._step

    def stops(self: Trainer, *batch: Any) -> float:
        seen.append(self.progress.step)
        if self.progress.step == 3:
            raise RuntimeError("power cut")
        return real(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stops)
        with pytest.raises(RuntimeError, match="power cut"):
            train(wanted, tmp_path / "stopped")
    assert seen[-1] == 3
    train(wanted, tmp_path / "stopped", resume=True)
    expected, got = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert [name for name in expected if not torch.equal(expected[name], got[name])] == []
    x = torch.randn(2, 3, 32, 32)
    assert model(x).shape == (2, len(SAMPLE_LABELS))
    saved = lw.load_model(tmp_path / "whole")
    assert saved.config.words == wanted.model.words
    torch.testing.assert_close(saved.with_labels(["sun"])(x)[:, 0], model(x)[:, model.labels.index("sun")])


def test_random_queries_are_not_for_one_label_per_image(here: Path) -> None:
    with pytest.raises(LabelwiseError, match="random_queries need independent labels"):
        check(recipe(here, **{"model.task": "single-label", "loss.name": "softmax-cross-entropy"}))


@pytest.mark.slow
def test_two_processes_train_with_augmentation_and_repeat(here: Path, tmp_path: Path) -> None:
    from labelwise.training.recipe import save_recipe

    save_recipe(recipe(here), tmp_path / "recipe.yaml")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])

    def together(*arguments: str) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
        command += ["--master-port", port, "-m", "labelwise", "train", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    for run in ("a", "b"):
        together("--recipe", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / run))
    first, second = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
