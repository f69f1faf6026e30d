"""docs/research/study.md: its tables are those of the results, and the results can be true."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_on_the_page_are_those_of_the_results() -> None:
    spec = importlib.util.spec_from_file_location("study_page", ROOT / "benchmarks" / "study_page.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_results(text) == text, "run: python benchmarks/study_page.py"


def test_every_head_has_weights_and_costs_something() -> None:
    rows = json.loads((ROOT / "docs" / "results" / "voc-study.json").read_text(encoding="utf-8"))["runs"]
    assert rows
    assert [row["row"] for row in rows if not row["head_parameters"] or not row["head_macs"]] == []
