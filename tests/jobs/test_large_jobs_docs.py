"""docs/guides/large-jobs.md: its commands, its Python, and the numbers of its example."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from labelwise.cli import main
from labelwise.data.sample import make_sample
from labelwise.model.model import create_model

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides" / "large-jobs.md").read_text(encoding="utf-8")


def run_page(place: Path, monkeypatch: pytest.MonkeyPatch, commands: list[str]) -> None:
    labels = make_sample(place / "demo" / "sample", images=24, size=48).labels
    create_model("resnet10t", "hsq", labels, weights="none", size=32, dim=16).save(place / "demo" / "hsq" / "model")
    (place / "benchmarks").symlink_to(ROOT / "benchmarks")
    monkeypatch.chdir(place)
    for command in commands:
        with pytest.raises(SystemExit) as done:
            main(shlex.split(command))
        assert not done.value.code, command


COMMANDS = re.findall(r"^    labelwise (.*)$", PAGE, re.MULTILINE)


def test_the_page_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(COMMANDS) == 2
    run_page(tmp_path, monkeypatch, [command for command in COMMANDS if "ray" not in command])
    capsys.readouterr()
    snippets = re.findall(r"```python\n(.*?)```\n\n(?:```\n(.*?)```)?", PAGE, re.DOTALL)
    assert len(snippets) == 2
    names: dict[str, object] = {}
    for snippet, output in snippets:
        exec(compile(snippet, "docs/guides/large-jobs.md", "exec"), names)
        said = capsys.readouterr().out
        if output:
            assert said == output, "the page is not what its code prints: copy the new lines"


@pytest.mark.slow
def test_the_command_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(tmp_path, monkeypatch, [command for command in COMMANDS if "ray" in command])
    assert len(list((tmp_path / "tags-ray").glob("part-*.parquet"))) == 1


def test_the_rate_in_the_text_is_the_measured_one() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "throughput.json").read_text())
    rate = next(row["images_per_s"] for row in measured["rows"] if row["engine"] == "onnxruntime")
    said = re.search(
        r"says\s+([\d.]+)\s+images/s\s+end\s+to\s+end\s+with\s+ONNX\s+Runtime,\s+so\s+r = ([\d.]+\d)", PAGE
    )
    assert said
    assert said.groups() == (f"{rate:.1f}", f"{rate / measured['machine']['cores']:.1f}")
