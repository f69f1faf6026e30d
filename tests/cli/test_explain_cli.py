"""`labelwise explain` beyond the picture of attention, and every command and snippet of docs/guides/explain.md."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from PIL import Image

from labelwise.cli import main
from labelwise.cli.explain import explain
from labelwise.core.errors import LabelwiseError
from labelwise.data.sample import make_sample
from labelwise.model.model import create_model

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "explain.md"


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


def test_the_page_runs_as_it_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(folder)
    text = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^    labelwise (.*)$", text, re.MULTILINE)
    assert len(commands) == 9
    for command in commands:
        with pytest.raises(SystemExit) as done:
            main([*shlex.split(command), *(["--workers", "0"] if "--data" in command else [])])
        assert not done.value.code, command
    said = capsys.readouterr().out
    assert "Grad-CAM: hiding 25% of the picture" in said
    assert "Layer 2: " in said
    for name in ("why.png", "layer1.png", "cam.png", "gap.png", "experts.png"):
        assert Image.open(name).format == "PNG"
    check = json.loads(Path("check.json").read_text())
    assert check["model"] == "demo/hsq"
    assert check["difference"] == pytest.approx(check["drop_attended"] - check["drop_random"])
    assert check["low"] <= check["difference"] <= check["high"]
    assert len(json.loads(Path("experts.json").read_text())["layers"]) == 2
    namespace: dict[str, object] = {}
    snippets = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        exec(compile(snippet, PAGE.name, "exec"), namespace)


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
    with pytest.raises(LabelwiseError, match="say where to draw"):
        explain(str(folder / "demo" / "hsq"), str(folder / "demo" / "sample" / "images" / "00000.jpg"))
