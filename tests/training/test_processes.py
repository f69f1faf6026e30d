"""Real processes: killed and resumed, interrupted, and two of them training together."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.data import open_data
from labelwise.data.sample import make_sample
from labelwise.model.model import load_model
from labelwise.runtime.run_files import locked
from labelwise.training import load_recipe
from labelwise.training.checkpoint import read_checkpoint
from labelwise.training.train import train
from process_kit import finished, start, start_two, torchrun, two_processes, weights
from tests.fork_server import Process

SETTINGS = [
    *("--backbone", "test_resnet", "--weights", "none", "--size", "32", "--batch-size", "8", "--workers", "0"),
    *("--head", "hsq", "--set", "head.dim=16", "--set", "head.attention_heads=2", "--set", "head.shared_experts=2"),
]
COMPARABLE = [
    *(*SETTINGS, "--set", "head.dropout=0.0", "--set", "head.token_dropout=0.0", "--set", "pair_mix=0"),
    *("--set", "precision=32-true"),
]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    make_sample(folder, images=80, size=48)
    return folder / "labels.csv"


def results(run: Path) -> dict[str, Any]:
    return load_model(run).config.results or {}


def history(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def wait_for(path: Path, process: Process) -> None:
    while not path.exists() and process.poll() is None:
        time.sleep(0.02)


def written(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None


def test_kill_9_at_random_moments_and_resume_gives_the_same_bits(sample: Path, tmp_path: Path) -> None:
    settings = ["--data", str(sample), *SETTINGS, "--epochs", "5", "--freeze", "backbone", "--set", "ema=0.9"]
    settings += ["--set", "refit=0", "--set", "checkpoint_minutes=0.000001"]  # after every step: many kills hit a write
    last = tmp_path / "killed" / "checkpoints" / "last.safetensors"
    killed = start(*settings, "--out", str(tmp_path / "killed"))
    moments = random.Random(os.getpid())
    for _ in range(2):
        for _ in range(moments.randint(1, 10)):  # checkpoints that this process writes
            before = written(last)
            while written(last) == before and killed.poll() is None:
                time.sleep(0.002)
        time.sleep(moments.uniform(0.0, 0.02))
        assert killed.poll() is None, killed.communicate()
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        _, state = read_checkpoint(last)
        assert 0 < state["step"] < state["steps"]
        killed = start("--out", str(tmp_path / "killed"), "--resume")
    finished(killed)
    train(load_recipe(tmp_path / "killed" / "recipe.yaml", {}), tmp_path / "whole")
    expected, got = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert [name for name in expected if not torch.equal(expected[name], got[name])] == []
    scores = [[row["mAP"] for row in history(tmp_path / run)] for run in ("whole", "killed")]
    assert scores[0] == scores[1]
    assert len(scores[0]) == 5


def test_two_trainings_in_one_folder_do_not_spoil_each_other(sample: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ["--data", str(sample), *SETTINGS, "--epochs", "400", "--freeze", "backbone", "--out", str(run)]
    first = start(*settings)
    wait_for(run / "checkpoints" / "last.safetensors", first)
    try:
        recipe = load_recipe(run / "recipe.yaml", {})
        with pytest.raises(LabelwiseError, match="another process is training in"):
            train(recipe, run, resume=True)
        with pytest.raises(LabelwiseError, match="another process is training in"):
            train(recipe, run, overwrite=True)
        assert first.poll() is None
        assert (run / "checkpoints" / "last.safetensors").exists()
    finally:
        first.kill()
        first.communicate()


def test_ctrl_c_says_how_to_go_on_and_loses_nothing(sample: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ["--data", str(sample), *SETTINGS, "--epochs", "400", "--freeze", "backbone", "--out", str(run)]
    process = start(*settings)
    wait_for(run / "checkpoints" / "last.safetensors", process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"Continue with: labelwise train --out {run} --resume" in " ".join(output.split())
    assert "Traceback" not in output
    assert (run / "metrics.jsonl").exists()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("freeze", ["backbone", pytest.param("early", marks=pytest.mark.slow)])
def test_two_processes_get_the_metrics_of_one(freeze: str, strategy: str, sample: Path, tmp_path: Path) -> None:
    """With gloo on loopback. What each process draws for itself is off: dropout, and partners of scenes."""
    settings = ["--data", str(sample), *COMPARABLE, "--epochs", "2", "--freeze", freeze, "--set", "ema=0.9"]
    together = ["--out", str(tmp_path / "two"), "--set", f"strategy={strategy}"]
    (torchrun if strategy == "ddp" else two_processes)(*settings, *together)
    shutil.rmtree(tmp_path / "two" / "model")  # gone: a resumed run makes it again from the sharded state it restores
    two_processes("--out", str(tmp_path / "two"), "--resume")
    assert "refit: from the best weights" in (tmp_path / "two" / "log.txt").read_text()
    train(load_recipe(tmp_path / "two" / "recipe.yaml", {"strategy": "auto"}), tmp_path / "one")
    for alone, both in zip(history(tmp_path / "one"), history(tmp_path / "two"), strict=True):
        assert both["loss"] == pytest.approx(alone["loss"], abs=1e-3)
        assert both["mAP"] == pytest.approx(alone["mAP"], abs=0.05)
        assert both["mAP_averaged"] == pytest.approx(alone["mAP_averaged"], abs=0.05)
        assert both["OF1"] == pytest.approx(alone["OF1"], abs=0.5)
    averages = [read_checkpoint(tmp_path / run / "checkpoints" / "last.safetensors")[0] for run in ("one", "two")]
    for name, tensor in averages[0].items():
        if name.startswith("averaged."):
            torch.testing.assert_close(averages[1][name], tensor, atol=1e-3, rtol=1e-2)
    for name, tensor in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], tensor, atol=1e-3, rtol=1e-2)
    fitted = [load_model(tmp_path / run).config for run in ("one", "two")]  # on the validation images of both processes
    assert fitted[1].temperature == pytest.approx(fitted[0].temperature, rel=0.01)
    assert fitted[1].thresholds == pytest.approx(fitted[0].thresholds, abs=0.01)


def test_a_sharded_group_that_is_stopped_goes_on_in_one_process(sample: Path, tmp_path: Path) -> None:
    """The same images in the same steps, so the same losses but for rounding. Without FSDP: test_machines.py."""
    run = tmp_path / "run"
    settings = ["--data", str(sample), *COMPARABLE, "--epochs", "4", "--freeze", "backbone", "--set", "refit=0"]
    settings += ["--set", "strategy=fsdp", "--set", "ema=0.9", "--out", str(run)]
    group = start_two(*settings)
    wait_for(run / "checkpoints" / "last.safetensors", group[0])
    group[1].send_signal(signal.SIGINT)  # either one stops both
    for process in group:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130, output
    finished(start("--out", str(run), "--resume"))
    assert re.search(r"continuing after step \d+ of 28, with 1 process\n", (run / "log.txt").read_text())
    train(load_recipe(run / "recipe.yaml", {"strategy": "auto"}), tmp_path / "alone")
    for alone, both in zip(history(tmp_path / "alone"), history(run), strict=True):
        assert both["loss"] == pytest.approx(alone["loss"], abs=1e-4)


def test_a_mistake_of_the_first_process_is_told_by_all(sample: Path, tmp_path: Path) -> None:
    """It alone locks the folder; the other one would wait for it until the timeout."""
    settings = ["--data", str(sample), *SETTINGS, "--out", str(tmp_path / "run")]
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run", 1):
        for process in start_two(*settings, "--set", "timeout_minutes=0.02"):
            output, _ = process.communicate(timeout=60)
            assert process.returncode == 2
            assert re.search(r"^error: another process is training in", output, re.MULTILINE), output


def test_skipped_images_are_counted_over_all_processes(tmp_path: Path) -> None:
    """Each process meets only those of its share, and in every epoch a different one."""
    make_sample(tmp_path / "sample", images=40, size=48)
    table = open_data(tmp_path / "sample" / "labels.csv")
    broken = [int(row) for split in ("train", "val") for row in table.rows(split)[:3]]
    for row in broken:
        Path(table.images[row]).write_bytes(b"not an image")
    settings = ["--data", str(tmp_path / "sample" / "labels.csv"), *SETTINGS, "--on-bad-image", "skip", "--epochs", "2"]
    two_processes(*settings, "--freeze", "none", "--out", str(tmp_path / "run"))
    assert results(tmp_path / "run")["skipped_images"] == len(broken)


def test_the_same_command_continues_what_is_unfinished_and_nothing_else(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a scheduler gives it again after a host was lost."""
    out, log = tmp_path / "run", tmp_path / "run" / "log.txt"
    settings: dict[str, Any] = {"head": "gap", "backbone": "test_resnet", "weights": "none", "size": 32, "epochs": 2}
    lw.train(sample, out=out, **settings)
    with pytest.raises(LabelwiseError, match="already holds a run"):
        lw.train(sample, out=out, **settings)
    finished = weights(out)
    shutil.rmtree(out / "model")
    with pytest.raises(LabelwiseError, match="already holds a run"):
        lw.train(sample, out=out, **settings | {"epochs": 3})
    lw.train(sample, out=out, **settings)
    assert re.search(r"continuing after step (\d+) of \1, with 1 process\n", log.read_text())
    assert all(torch.equal(tensor, finished[name]) for name, tensor in weights(out).items())
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    lw.train(sample, out=out, **settings)  # restarted because a host was lost after the model was saved
    assert "is already finished" in log.read_text()
    with pytest.raises(LabelwiseError, match="would overwrite its own checkpoints"):
        lw.train(sample, out=out, overwrite=True, **settings)
