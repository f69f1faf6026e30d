"""Every command of the tutorials runs, as a reader would run it: in a shell, in an empty folder, without a network."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from labelwise.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "docs" / "start" / "own-images.md"] + [
    ROOT / "docs" / "guides" / name
    for name in ("zero-shot-tutorial.md", "many-labels-tutorial.md", "papers-table.md", "deployment.md")
]
BLOCK = re.compile(r"^(?:<!-- not run: (?P<reason>.+) -->\n)?```sh\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
# The first mistake ends a block, and a server that it has started with it.
STRICT = "set -euo pipefail\ntrap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n"
# What cannot run in a test; anything else that is marked would be a command that nobody has tried.
NOT_RUN = {
    "own-images.md": ["labelwise serve runs/first"],
    "papers-table.md": [
        "labelwise data download coco2014 --out /data/coco2014",
        "labelwise train --recipe recipes/hsq/coco-resnet10t-576-ns16.yaml --data coco:/data/coco2014 --out runs/ns16",
        "labelwise evaluate runs/ns16 --data coco:/data/coco2014 --split val --json runs/ns16/val.json",
    ],
    "deployment.md": [
        "docker build --tag tagger .",
        "docker run --rm --publish 127.0.0.1:8000:8000 --env LABELWISE_API_KEY tagger",
    ],
}
# What a reader finds in the folder at the end.
LEFT_BEHIND = {
    "own-images.md": [
        "runs/first/model/config.json",
        "tags.csv",
        "runs/first/test.json",
        "report/report.html",
        "why.png",
    ],
    "zero-shot-tutorial.md": ["runs/words/model/config.json"],
    "many-labels-tutorial.md": ["runs/many/test.json"],
    "papers-table.md": ["runs/rehearsal/recipe.yaml", "sweeps/table-1/results.csv"],
    "deployment.md": ["first/model.onnx", "Dockerfile", "tags.csv", "tags/_job.json", "upload/README.md"],
}


@dataclass(frozen=True)
class Block:
    text: str
    reason: str | None  # why it is not run

    @property
    def commands(self) -> list[str]:
        """Lines, with continued ones joined; what is fed to a program (<<'END') is not a command."""
        text = re.sub(r"^(.*)<<'END'\n.*?^END$", r"\1", self.text, flags=re.MULTILINE | re.DOTALL)
        return [" ".join(line.split()) for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def blocks(page: Path) -> list[Block]:
    found = [Block(match["text"], match["reason"]) for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    assert len(found) == page.read_text(encoding="utf-8").count("```sh\n")
    return found


def run(page: Path, folder: Path, until: int | None = None) -> None:
    """Run the page's blocks in order, up to the one with the number `until`."""
    (folder / "recipes").symlink_to(ROOT / "recipes")  # "in a clone of the repository"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {name: value for name, value in os.environ.items() if name != "LABELWISE_API_KEY"} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "LABELWISE_CACHE": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    for block in blocks(page)[:until]:
        if block.reason is None:
            script = STRICT + block.text.replace("8000", port)
            done = subprocess.run(
                ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"


def test_there_are_tutorials() -> None:
    assert {page.name for page in PAGES} == set(LEFT_BEHIND)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_only_what_needs_a_network_or_never_ends_is_left_out(page: Path) -> None:
    skipped = [block for block in blocks(page) if block.reason is not None]
    assert [command for block in skipped for command in block.commands] == NOT_RUN.get(page.name, [])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_has_these_options(page: Path) -> None:
    """Quick: the command line is read, and nothing is done."""
    commands = [command for block in blocks(page) for command in block.commands if command.startswith("labelwise ")]
    assert commands
    for command in commands:
        tokens = [token for token in shlex.split(command) if token != "&"]
        app.parse_args(tokens[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_tutorials_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_first_tutorial_up_to_the_first_labels(tmp_path: Path) -> None:
    run(PAGES[0], tmp_path, until=4)
    assert (tmp_path / "runs" / "first" / "model" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_runs(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path)
    assert [name for name in LEFT_BEHIND[page.name] if not (tmp_path / name).exists()] == []
