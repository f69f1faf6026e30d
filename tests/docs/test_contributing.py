"""CONTRIBUTING.md: its picture is the import contract, and its worked example is files that pass their tests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pages import ROOT, blocks

from tests import fork_server

PAGE = ROOT / "CONTRIBUTING.md"


def test_the_picture_is_the_import_contract() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    picture = next(block.text for block in blocks(PAGE) if block.text.startswith("cli "))
    assert [re.split(" {2,}", line)[0] for line in picture.splitlines()] == contract["layers"]


def test_the_worked_example_passes_its_tests(tmp_path: Path) -> None:
    """In a process of its own: what it registers would be there for all other tests. The kit's slowest tests are left
    out; every built-in head runs them."""
    for block in blocks(PAGE):
        if match := re.match(r"# (\w+\.py)\n", block.text):
            (tmp_path / match[1]).write_text(block.text)
    kits = tmp_path / "head_kit.py"
    kits.write_text((ROOT / "tests" / "heads" / "head_kit.py").read_text(encoding="utf-8"))
    options = ("-q", "-p", "no:cacheprovider", "-k", "not compiles and not exports")
    done = fork_server.run("-m", "pytest", *options, tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 14  # type: ignore[index]
