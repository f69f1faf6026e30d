"""The page about serving: its snippets run against a server, its table of limits is the command's."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from labelwise.cli.serve import serve
from serving_kit import RunningServer

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "serve.md").read_text(encoding="utf-8")


def blocks(kind: str, server: RunningServer) -> list[str]:
    found = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found
    return [block.replace("http://127.0.0.1:8000", server.address).replace("/hsq/", "/tiny/") for block in found]


@pytest.fixture
def _in_a_folder_with_photos(photos: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(photos[0], tmp_path / "photo.jpg")
    shutil.copy(photos[1], tmp_path / "other.jpg")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_in_a_folder_with_photos")
def test_python_in_the_page(tiny_server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks("python", tiny_server):
        exec(block, {})  # our own page
    assert re.match(r"\w+ 0\.\d+\n", capsys.readouterr().out)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.usefixtures("_in_a_folder_with_photos")
def test_curl_in_the_page(tiny_server: RunningServer) -> None:
    for block in blocks("bash", tiny_server):
        done = subprocess.run([*shlex.split(block), "--silent"], capture_output=True, text=True, check=True)
        assert '"labels":{' in done.stdout


def test_the_limits_are_the_commands() -> None:
    listed = dict(re.findall(r"^\| `--([a-z-]+)` \| ([\d.]+) \|", PAGE, flags=re.MULTILINE))
    defaults = {
        name.replace("_", "-"): str(parameter.default)
        for name, parameter in inspect.signature(serve).parameters.items()
    }
    assert len(listed) == 5
    assert listed == {name: defaults[name] for name in listed}


def test_the_metrics_are_the_servers(tiny_server: RunningServer) -> None:
    listed = set(re.findall(r"^\| `(labelwise_\w+)` \|", PAGE, flags=re.MULTILINE))
    text = tiny_server.client.get("/metrics").text
    there = set(re.findall(r"^# TYPE (labelwise_\w+) (?!gauge\n# HELP \1_created)", text, flags=re.MULTILINE))
    assert listed == {name for name in there if not name.endswith("_created")}
