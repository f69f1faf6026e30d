"""The Python of docs/reference/data-formats.md runs, top to bottom, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_the_snippets_of_the_data_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "data-formats.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
