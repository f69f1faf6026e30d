"""The folder that the pages run in: what `make demo` leaves behind, small, and a trained run in runs/first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from labelwise.cli import main
from labelwise.data.sample import make_sample
from labelwise.model.model import create_model

ROOT = Path(__file__).resolve().parents[2]
SMALL = "--backbone test_resnet --weights none --size 32 --epochs 1 --workers 0 --set head.dim=16"


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once: the sample, two untrained models, a trained run, and images with the names that pages use."""
    folder = tmp_path_factory.mktemp("pages")
    labels = make_sample(folder / "demo" / "sample", images=40, size=48).labels
    torch.manual_seed(0)
    for head, options in (("hsq", {"dim": 16, "shared_experts": 3}), ("gap", {})):
        model = create_model("test_resnet", head, labels, weights="none", size=32, **options)
        model.save(folder / "demo" / head / "model")
    os.environ["LABELWISE_CACHE"], before = str(folder / "cache"), os.environ.get("LABELWISE_CACHE")
    data = folder / "demo" / "sample" / "labels.csv"
    with pytest.raises(SystemExit) as done:
        main(["train", "--data", str(data), "--out", str(folder / "runs" / "first"), *SMALL.split()])
    os.environ.pop("LABELWISE_CACHE")
    if before is not None:
        os.environ["LABELWISE_CACHE"] = before
    assert not done.value.code
    (folder / "photos.csv").write_text(data.read_text().replace("\nimages/", "\ndemo/sample/images/"))
    for name, image in (("photo.jpg", "00003.jpg"), ("other.jpg", "00019.jpg")):
        shutil.copy(folder / "demo" / "sample" / "images" / image, folder / name)
    chelsea = Path(pytest.importorskip("skimage").__file__).parent / "data" / "chelsea.png"
    shutil.copy(chelsea, folder)
    return folder


def copied(source: str, target: str) -> None:
    """Large files, which no page changes, are links."""
    (os.link if source.endswith(".safetensors") else shutil.copy)(source, target)


@pytest.fixture
def work(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy for one page, which looks like a checkout of the repository after `make demo`."""
    folder = tmp_path / "work"
    shutil.copytree(prepared, folder, copy_function=copied, ignore=shutil.ignore_patterns("cache"))
    for name in ("recipes", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LABELWISE_API_KEY", raising=False)
    return folder


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a server with one small model, `hsq`, listens."""
    for package in ("fastapi", "uvicorn", "onnx", "onnxruntime"):
        pytest.importorskip(package, reason="needs the extras serve and onnx")
    from tests.server.serving_kit import running, write_tiny_export

    with running(f"hsq={write_tiny_export(tmp_path_factory.mktemp('served') / 'tiny')}") as server:
        yield server.address
