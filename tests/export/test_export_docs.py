"""Every command and snippet of docs/guides/export.md, on a model that is small and untrained."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from labelwise.cli import main
from labelwise.data.sample import make_sample
from labelwise.model.model import create_model

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "export.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
    labels = make_sample(tmp_path / "demo" / "sample", images=40, size=48).labels
    create_model("resnet10t", "hsq", labels, weights="none", size=64, dim=16).save(tmp_path / "demo" / "hsq" / "model")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^    labelwise (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        with pytest.raises(SystemExit) as done:
            main(shlex.split(command))
        assert not done.value.code
    said = capsys.readouterr().out
    assert "first: onnx, float32, 13 labels, any batch size, sides of any multiple of 32" in said
    assert "in INT8" in said
    names: dict[str, object] = {}
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(snippet, "docs/guides/export.md", "exec"), names)
