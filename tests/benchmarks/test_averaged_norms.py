"""The benchmark of averaged batch-norm statistics runs, and the statistics make a difference."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import averaged_norms


def test_each_choice_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averaged_norms, "CASES", ((0.9, False),))
    monkeypatch.setattr(averaged_norms, "EPOCHS", 1)
    monkeypatch.setattr(sys, "argv", ["averaged_norms.py", "--images", "60", "--json", str(tmp_path / "found.json")])
    averaged_norms.main()
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    averaged = [value for name, value in row.items() if name.startswith("averaged")]
    assert len(averaged) == 3
    assert len(set(averaged)) > 1
    assert all(0 < value <= 100 for value in averaged)
