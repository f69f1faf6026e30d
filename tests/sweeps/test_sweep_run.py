"""Whole sweeps on the sample set: what they leave behind, that they go on where they stopped, and what failures do."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from labelwise.cli import main
from labelwise.cli.sweep import sweep
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.evaluation import evaluate
from labelwise.model.model import load_model
from labelwise.sweeps.execute import status_of
from labelwise.sweeps.plan import plan
from labelwise.training import train as training

SMALL = [
    "model.backbone=test_resnet",
    "model.weights=none",
    "model.size=32",
    "model.options={dim: 16, attention_heads: 2}",
    "epochs=2",
    "batch_size=8",
    "workers=0",
]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    make_sample(folder, images=40, size=48)
    return folder / "labels.csv"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))


def run(sample: Path, out: Path, *grid: str, **options: Any) -> None:
    sweep(grid=list(grid), out=out, data=str(sample), set_=SMALL, **({"report": False} | options))


def test_a_sweep_leaves_comparable_runs_and_does_nothing_twice(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "ablation"
    grid = ("head=gap,hsq", "head.shared_experts=0,3", "seed=0,1")
    run(sample, out, *grid, skip_invalid=True, dry_run=True)
    listed = capsys.readouterr().out
    assert listed.count("new ") == 6
    assert listed.splitlines()[-1] == "6 runs"
    assert not out.exists()

    run(sample, out, *grid, skip_invalid=True)
    said = capsys.readouterr().out
    assert "[6 of 6] head-hsq_shared_experts-3_seed-1: mAP" in said
    assert "mean over the seeds" in said
    content = json.loads((out / "results.json").read_text())
    assert [row["status"] for row in content["runs"]] == ["finished"] * 6
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert [row["run"] for row in rows] == [row["run"] for row in content["runs"]]
    # The numbers are those of an evaluation of the run's model on the test split.
    from labelwise.data.sources import open_data

    last = content["runs"][-1]
    test = open_data(sample).select("test")
    expected = evaluate(load_model(out / last["run"]), test, bootstrap=0, workers=0, progress=False).to_dict()
    assert last["mAP"] == pytest.approx(expected["mAP"], abs=0.05)  # cached features have 16 bits
    assert last["epochs"] == 2
    assert last["head.shared_experts"] == 3
    assert content["runs"][0]["head.shared_experts"] is None
    pair = [row["mAP"] for row in content["runs"][4:]]
    summary = content["over_seeds"][-1]
    assert (summary["seeds"], summary["mAP"]) == (2, pytest.approx(sum(pair) / 2))

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr("labelwise.sweeps.execute.train", never)
    before = (out / "results.json").read_text()
    run(sample, out, *grid, skip_invalid=True, report=True)
    assert (out / "results.json").read_text() == before
    page = (out / "report" / "report.html").read_text()
    assert all(row["run"] in page for row in content["runs"])
    assert f"Open {out / 'report' / 'report.html'} in a browser." in capsys.readouterr().out


def test_features_are_computed_once_for_all_runs(sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from labelwise.features import cache

    images = []
    real = cache._forward

    def counted(backbone: Any, inputs: torch.Tensor, batch_size: int) -> torch.Tensor:
        images.append(len(inputs))
        return real(backbone, inputs, batch_size)

    asked = []
    monkeypatch.setattr(cache, "_forward", counted)
    open_engine = cache.open_engine
    monkeypatch.setattr(
        cache, "open_engine", lambda name, *args, **options: asked.append(name) or open_engine(name, *args, **options)
    )
    # Random weights differ from seed to seed, and so do their features: here all runs have the same.
    run(sample, tmp_path / "s", "head=transformer-decoder,hsq", "lr=0.001,0.01", "epochs=1")
    train, val, test = (len(part) for part in _splits(sample))
    assert sum(images) == train + val + test
    assert asked == ["auto", "auto"]  # once for train and val, once for the test images: the fastest computes them, too


def _splits(sample: Path) -> list[Any]:
    from labelwise.data.sources import open_data

    return [open_data(sample).select(split) for split in ("train", "val", "test")]


def test_a_failure_is_written_down_and_the_others_go_on(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "s"
    # 15 is not divisible by the two attention heads: known only when the head is built.
    grid = ("head.dim=15,16", "seed=0")
    with pytest.raises(LabelwiseError, match="1 of 2 runs failed"):
        run(sample, out, *grid)
    first, second = json.loads((out / "results.json").read_text())["runs"]
    assert (first["status"], second["status"]) == ("failed", "finished")
    assert "not divisible" in first["reason"]
    assert first["mAP"] is None
    assert "failed: dim=15" in capsys.readouterr().out


def test_a_failure_names_its_fix_as_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = make_sample(tmp_path / "photos", images=12, size=48)
    Path(table.images[table.rows("train")[0]]).write_bytes(b"no picture")
    settings = [word for setting in SMALL for word in ("--set", setting)]
    where = ["--data", str(table.source), "--out", str(tmp_path / "s")]
    with pytest.raises(SystemExit):
        main(["sweep", "--grid", "head=hsq", *where, *settings, "--no-report"])
    assert "(--set on_bad_image=skip)" in capsys.readouterr().out  # however long the path before it


def test_an_interrupted_run_goes_on_to_the_same_weights(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ("seed=0,1",)
    run(sample, tmp_path / "whole", *grid, test_split="none")
    real = training.Trainer._train_epoch

    def stopped(self: Any, epoch: int, *rest: Any) -> None:
        if self.recipe.seed == 1 and epoch == 1:
            raise KeyboardInterrupt
        real(self, epoch, *rest)

    out = tmp_path / "cut"
    monkeypatch.setattr(training.Trainer, "_train_epoch", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(sample, out, *grid, test_split="none")
    monkeypatch.setattr(training.Trainer, "_train_epoch", real)
    assert "Give the same command again" in capsys.readouterr().out
    assert [row["run"] for row in json.loads((out / "results.json").read_text())["runs"]] == ["seed-0"]
    run(sample, out, *grid, dry_run=True)
    assert capsys.readouterr().out.split()[::2][:2] == ["finished", "interrupted"]
    run(sample, out, *grid, test_split="none")
    assert "seed-1: resuming" in capsys.readouterr().out
    for name in ("seed-0", "seed-1"):
        ours, theirs = (
            load_file(folder / name / "model" / "model.safetensors") for folder in (out, tmp_path / "whole")
        )
        assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())


def test_a_folder_with_another_run_is_refused(sample: Path, tmp_path: Path) -> None:
    out = tmp_path / "s"
    run(sample, out, "seed=0", test_split="none")
    with pytest.raises(LabelwiseError, match="other settings"):
        sweep(grid=["seed=0"], out=out, data=str(sample), set_=[*SMALL, "optimizer.lr=0.5"])
    (planned,) = plan(None, {"data.source": str(sample)}, {"seed": [7]})
    assert status_of(out / "seed-7", planned) == "new"


def test_unsplit_data_is_split_once_for_all_seeds(sample: Path, tmp_path: Path) -> None:
    rows = [{"image": row["image"], "labels": row["labels"]} for row in csv.DictReader(sample.open())]
    plain = sample.parent / "plain.csv"
    with plain.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["image", "labels"])
        writer.writeheader()
        writer.writerows(rows)
    out = tmp_path / "s"
    run(plain, out, "seed=0,1", "epochs=1")
    for name in ("seed-0_epochs-1", "seed-1_epochs-1"):
        assert f"source: {out / 'split.csv'}" in (out / name / "recipe.yaml").read_text()
        assert not (out / name / "split.csv").exists()
    counts = {row["run"]: row["status"] for row in json.loads((out / "results.json").read_text())["runs"]}
    assert set(counts.values()) == {"finished"}


def test_mistakes_cost_no_training(sample: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"test_split": "tset"}, "tset"),
        ({"jobs": 0}, "jobs must be 1 or more"),
    ):
        with pytest.raises(LabelwiseError, match=message):
            run(sample, tmp_path / "s", "seed=0", **options)
    with pytest.raises(LabelwiseError, match="say which data"):
        sweep(grid=["seed=0"], out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["Ctrl-C", "a worker is killed"])
def test_two_at_a_time_in_real_processes_and_a_stop_in_between(sample: Path, tmp_path: Path, stop: str) -> None:
    """Either is told without a traceback, and the same command then ends with all runs finished."""
    out = tmp_path / "s"
    arguments = ["--grid", "seed=0,1,2", "--out", str(out), "--data", str(sample), "--no-report", "--jobs", "2"]
    settings = [part for setting in [*SMALL[:4], "epochs=6", *SMALL[5:]] for part in ("--set", setting)]
    command = [sys.executable, "-m", "labelwise", "sweep", *arguments, *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0)
    for _ in range(600):
        if list(out.glob("*/checkpoints/last.safetensors")):
            break
        time.sleep(0.2)
    if stop == "Ctrl-C":
        process.send_signal(signal.SIGINT)
    else:
        os.kill(_workers(process.pid)[0], signal.SIGKILL)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == (130 if stop == "Ctrl-C" else 2)
    assert "Traceback" not in said
    if stop == "a worker is killed":
        assert "too little memory?" in " ".join(said.split())
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((out / "results.json").read_text())["runs"]
    assert [row["status"] for row in rows] == ["finished"] * 3


def _workers(process: int) -> list[int]:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


def test_splits_are_those_of_the_same_photos(sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = _without_split(sample)
    unsplit, fewer = sample.with_name("unsplit.csv"), sample.with_name("fewer.csv")
    unsplit.write_text("\n".join(rows) + "\n")
    fewer.write_text("\n".join(rows[:20]) + "\n")
    out = tmp_path / "sw"
    run(unsplit, out, "seed=0", test_split="none")
    run(unsplit, out, "seed=0", dry_run=True)
    assert "finished" in capsys.readouterr().out.splitlines()[-2]
    with pytest.raises(LabelwiseError, match="holds a sweep on other images or labels"):
        run(fewer, out, "seed=0", test_split="none")
    with pytest.raises(LabelwiseError, match=r": unknown split 'holdout'"):
        run(unsplit, tmp_path / "new", "seed=0", test_split="holdout")


def _without_split(manifest: Path) -> list[str]:
    with manifest.open(newline="") as file:
        rows = [{key: value for key, value in row.items() if key != "split"} for row in csv.DictReader(file)]
    return [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
