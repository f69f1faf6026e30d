"""benchmarks/partial_labels.py on the sample set: every loss trains, finished trainings stay; the page has its rows."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import labelwise as lw

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("partial_labels")


def test_it_trains_with_every_loss_and_resumes(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lw.data.make_sample(tmp_path / "sample", images=60, size=32)
    monkeypatch.setenv("LABELWISE_CACHE", str(tmp_path / "cache"))
    tiny = ["--backbone", "test_resnet", "--weights", "none", "--size", "32", "--epochs", "2", "--settings", "voc"]
    source = ["--data", str(tmp_path / "sample" / "labels.csv"), "--json", str(tmp_path / "found.json")]

    def run(*more: str) -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", ["partial_labels.py", *source, *tiny, "--seeds", "0", *more])
        benchmark.main()
        rows: list[dict[str, Any]] = json.loads((tmp_path / "found.json").read_text())["rows"]
        return rows

    rows = run("--keep", "one-positive")
    assert [row["loss"] for row in rows] == list(benchmark.losses_of("voc", 13, 2))
    assert all(0 < row["mAP"] <= 100 for row in rows)
    assert len({row["mAP"] for row in rows}) > 2  # the losses do reach the trainings
    with monkeypatch.context() as patch:
        patch.setattr(benchmark.Study, "_trained", None)
        assert run("--keep", "one-positive") == rows  # none is done again
    more = run("--keep", "1", "--losses", "bce, unknown ignored")
    assert more[:-1] == rows
    assert f"| bce, unknown ignored | {rows[0]['mAP']:.1f} | {more[-1]['mAP']:.1f} |" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["voc", "coco"])
def test_the_page_has_the_table_of_the_results(benchmark: Any, name: str) -> None:
    rows = json.loads((ROOT / "docs" / "results" / f"partial-labels-{name}.json").read_text())["rows"]
    page = (ROOT / "docs" / "research" / "partial-labels.md").read_text(encoding="utf-8")
    assert benchmark.table_of(rows) in page
