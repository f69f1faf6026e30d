"""`labelwise explain` beyond the picture of attention."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from labelwise.cli.explain import explain
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.model.model import create_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make demo` leaves behind, small and untrained."""
    root = tmp_path_factory.mktemp("explain")
    labels = make_sample(root / "demo" / "sample", images=30, size=48).labels
    torch.manual_seed(0)
    for head, options in (("hsq", {"dim": 16, "shared_experts": 3}), ("gap", {})):
        model = create_model("test_resnet", head, labels, weights="none", size=32, **options)
        model.save(root / "demo" / head / "model")
    return root


def test_check_and_experts_as_json(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    data = "demo/sample/labels.csv"
    explain("demo/hsq", check=True, data=data, split="val+test", images=100, out=Path("check.json"), workers=0)
    explain("demo/hsq", experts=True, data=data, split="test", out=Path("experts.json"), workers=0)
    check = json.loads(Path("check.json").read_text())
    assert check["model"] == "demo/hsq"
    assert check["difference"] == pytest.approx(check["drop_attended"] - check["drop_random"])
    assert check["low"] <= check["difference"] <= check["high"]
    assert len(json.loads(Path("experts.json").read_text())["layers"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say what to explain"),
        ({"check": True, "experts": True}, "say what to explain"),
        ({"check": True}, "--check needs images"),
        ({"experts": True}, "--experts needs images"),
        ({"check": True, "data": "x.csv", "images": 1}, "images must be 2 or more"),
        ({"check": True, "data": "x.csv", "area": 1.0}, "between 0 and 1"),
        ({"check": True, "data": "x.csv", "out": Path("x.png")}, "writes JSON"),
        ({"experts": True, "data": "x.csv", "out": Path("x.txt")}, r"\.html, \.json"),
    ],
)
def test_mistakes_are_named_before_a_model_is_loaded(options: dict[str, object], message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        explain("owner/no-such-model", **options)  # type: ignore[arg-type]


def test_a_head_without_experts_says_so_and_a_picture_needs_a_file(folder: Path) -> None:
    data = str(folder / "demo" / "sample" / "labels.csv")
    with pytest.raises(LabelwiseError, match="no experts"):
        explain(str(folder / "demo" / "gap"), experts=True, data=data)
    with pytest.raises(LabelwiseError, match="no output file is named"):
        explain(str(folder / "demo" / "hsq"), str(folder / "demo" / "sample" / "images" / "00000.jpg"))


def test_the_image_is_not_replaced_by_its_maps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "demo" / "sample" / "images")
    before = Path("00000.jpg").read_bytes()
    with pytest.raises(LabelwiseError, match="is the image itself"):
        explain(str(folder / "demo" / "hsq"), str(Path("00000.jpg").resolve()), out=Path("00000.jpg"))
    assert Path("00000.jpg").read_bytes() == before


def test_the_bundled_tagger_knows_a_sofa_as_couch(folder: Path) -> None:
    with pytest.raises(LabelwiseError, match=r"unknown label 'sofa'; did you mean 'couch'\?"):
        explain(str(folder / "demo" / "sample" / "images" / "00000.jpg"), labels="sofa", out=folder / "sofa.png")
