"""`labelwise train --runner ray` against torchrun: the same bits, also after a process was killed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.training.run import read_history
from process_kit import same_bits, torchrun
from tests.fork_server import Command
from tests.jobs.job_kit import kill, workers_of

SETTINGS = [
    *("--backbone", "test_resnet", "--weights", "none", "--size", "32", "--batch-size", "8", "--freeze", "backbone"),
    *("--head", "hsq", "--set", "head.dim=16", "--set", "head.attention_heads=2", "--set", "head.shared_experts=2"),
    *("--set", "ema=0.9"),
    *("--set", "precision=32-true", "--set", "checkpoint_minutes=0.000001"),
]


def train_words(sample: Path, out: Path, epochs: int) -> list[str]:
    return ["train", "--data", str(sample), *SETTINGS, "--epochs", str(epochs), "--out", str(out)]


def assert_the_same_run(one: Path, other: Path) -> None:
    assert same_bits(one, other)
    for row, again in zip(read_history(one), read_history(other), strict=True):
        assert {name: row[name] for name in ("loss", "mAP", "OF1")} == {
            name: again[name] for name in ("loss", "mAP", "OF1")
        }
    assert lw.load(one).config.thresholds == lw.load(other).config.thresholds


@pytest.mark.slow
def test_ray_gives_the_bits_of_torchrun_whoever_is_killed(sample: Path, tmp_path: Path) -> None:
    torchrun(*train_words(sample, tmp_path / "torchrun", epochs=40)[1:])
    command = [sys.executable, "-m", "labelwise", *train_words(sample, tmp_path / "ray", epochs=40)]
    process = subprocess.Popen([*command, "--runner", "ray", "--processes", "2"], stderr=subprocess.PIPE, text=True)
    log = tmp_path / "ray" / "log.txt"
    try:
        while not (log.exists() and "epoch   1" in log.read_text()):
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.01)
        kill(workers_of(process.pid, b"RayTrainWorker")[1])
        _, said = process.communicate(timeout=900)
    finally:
        process.kill()  # Ray ends with it
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert re.search(r"continuing after step \d+ of \d+, with 2 processes\n", said)
    assert "epoch  40" in said
    assert sorted(path.name for path in (tmp_path / "ray").iterdir()) == sorted(
        path.name for path in (tmp_path / "torchrun").iterdir()
    )
    assert_the_same_run(tmp_path / "torchrun", tmp_path / "ray")


@pytest.mark.slow
def test_what_goes_wrong_in_a_process_is_told_in_one_line(sample: Path, tmp_path: Path, labelwise: Command) -> None:
    words = train_words(sample, tmp_path / "run", epochs=1)
    done = labelwise(*words, "--set", "optimizer.lr=1e30", "--set", "loss.name=bce", "--runner", "ray")
    assert done.returncode == 2
    assert "error: the loss became" in done.stderr or "error: the gradient became" in done.stderr
    assert "Traceback" not in done.stderr


def test_mistakes_are_told_before_ray_starts(sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabelwiseError, match=r"are for Ray; say so \(runner='ray'\)"):
        lw.train(sample, out=tmp_path / "run", processes=2)
    with pytest.raises(LabelwiseError, match="would overwrite its own checkpoints"):
        lw.train(sample, out=tmp_path / "run", runner="ray", overwrite=True)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        LabelwiseError, match=r"needs the package 'ray'; install it with: pip install 'labelwise\[ray\]'"
    ):
        lw.train(sample, out=tmp_path / "run", runner="ray")
