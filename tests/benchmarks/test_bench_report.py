"""Reports, the page made from them, and the peers that benchmarks compare with."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks.speed.report import Check, Column, Report, markdown
from labelwise import heads
from labelwise.engines.measure import in_turns
from tests.oracles.peers import create_head, literal_hsq

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("performance_page", ROOT / "benchmarks" / "performance_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example() -> Report:
    columns = [Column("head", "head"), Column("ms", "time (ms)", ".1f"), Column("ratio", "faster by", ".2fx")]
    rows = [{"head": "hsq", "ms": 12.34, "ratio": 2.0}, {"head": "gap", "ms": 1.0}]
    checks = [Check("speed", 2.0, 1.5), Check("growth", 1.3, 1.15, at_most=True)]
    return Report("example", "Example", columns, rows, checks, bars={"ms": "ms"}, unit="ms")


def test_a_report_says_what_holds_and_writes_json_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example().publish(tmp_path / "out" / "r.json", tmp_path / "r.svg")
    printed = capsys.readouterr().out
    assert "12.3" in printed
    assert "speed: 2.00x (target: at least 1.5x)\n" in printed
    assert "growth: 1.30x (target: at most 1.15x): MISSED" in printed
    content = json.loads((tmp_path / "out" / "r.json").read_text())
    assert [check["holds"] for check in content["checks"]] == [True, False]
    assert content["machine"]["cores"] >= 1
    assert content["machine"]["versions"]["torch"] == torch.__version__.split("+")[0]
    assert "<svg" in (tmp_path / "r.svg").read_text()


def test_the_page_follows_the_results(page: ModuleType, tmp_path: Path) -> None:
    text = "before\n<!-- bench: example -->\nold numbers\n<!-- end -->\n<!-- bench: other -->\n<!-- end -->\nafter\n"
    example().publish(tmp_path / "example.json", None)
    filled = page.with_results(text, tmp_path)
    assert "old numbers" not in filled
    assert "| hsq | 12.3 | 2.00x |\n| gap | 1.0 |  |\n" in filled
    assert filled.endswith("<!-- bench: other -->\n<!-- end -->\nafter\n")
    assert page.with_results(filled, tmp_path) == filled


def test_the_numbers_on_the_page_are_those_of_the_results(page: ModuleType) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_results(text, page.RESULTS) == text, "run: python -m benchmarks.performance_page"
    named = {match["name"] for match in page.SECTION.finditer(text)}
    assert named == {"heads", "folding", "scaling", "throughput", "engines", "decode", "train", "memory", "serve"}


def test_markdown_has_the_machine_and_the_promises() -> None:
    text = markdown(example().to_dict())
    assert "|---|---:|---:|" in text
    assert "growth: 1.30x (target: at most 1.15x): MISSED" in text
    assert f"torch {torch.__version__.split('+')[0]}" in text


def test_turns_are_taken_in_order() -> None:
    calls: list[str] = []
    times = in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=0, rounds=3)
    assert calls == ["a", "b"] * 4  # one warm-up
    assert all(0 <= timing.best <= timing.median for timing in times.values())


def test_a_literal_hsq_head_gives_the_same_logits() -> None:
    head = heads.create("hsq", in_features=16, labels=6, dim=16, shared_experts=3, task_experts=2).eval()
    x = torch.randn(2, 16, 3, 3)
    torch.testing.assert_close(literal_hsq(head).eval()(x), head(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["timm ml-decoder", "ml-decoder", "ml-decoder optimised"])
def test_heads_by_name(name: str) -> None:
    head = create_head(name, 16, 30, {"groups": 5, "dim": 32}).eval()
    assert head(torch.randn(2, 16, 3, 3)).shape == (2, 30)
