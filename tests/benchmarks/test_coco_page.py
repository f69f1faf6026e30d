"""benchmarks/coco_page.py says what the results say, also where rows and seeds are missing."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("coco_page")


def shows(page: Any, monkeypatch: pytest.MonkeyPatch, **files: Any) -> None:
    monkeypatch.setattr(page, "results", lambda name: files.get(name.replace("-", "_"), {}))


def gap(row: str, reference: str, of_seeds: list[float], low: float, high: float, **more: Any) -> dict[str, Any]:
    seeds = list(range(len(of_seeds)))
    middle = sum(of_seeds) / len(of_seeds)
    return {
        **{"row": row, "reference": reference, "seeds": seeds, "difference": middle},
        **{"interval": [low, high], "of_seeds": of_seeds, **more},
    }


@pytest.mark.parametrize(
    ("of_seeds", "interval", "expected"),
    [
        ([0.5, 0.6], (0.1, 1.0), "higher"),
        ([-0.5], (-0.9, -0.1), "lower in one seed"),
        ([0.9, -0.1], (0.1, 0.7), "no clear difference"),  # seeds disagree
        ([0.5, 0.6], (-0.1, 1.2), "no clear difference"),
    ],
)
def test_verdict(page: Any, of_seeds: list[float], interval: tuple[float, float], expected: str) -> None:
    assert page.verdict(gap("hsq", "q2l", of_seeds, *interval)) == expected


def test_nothing_is_claimed_without_results(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shows(page, monkeypatch)
    for name, section in page.SECTIONS.items():
        assert "higher" not in section(), name
    assert page.hsq_answer().startswith("- Not measured yet: HSQ (16 shared experts) against Query2Label;")
    assert "not run: `gap`, `hsq`" in page.state()


def test_answers_name_differences_seeds_and_what_is_missing(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [gap("hsq", "q2l", [0.5, 0.7], 0.2, 1.0), gap("hsq-s0", "q2l", [0.1], -0.3, 0.5)]
    shows(page, monkeypatch, coco_study={"differences": found})
    first, second, missing = page.hsq_answer().splitlines()
    assert first == "- HSQ (16 shared experts) against Query2Label: +0.60 (+0.20 to +1.00), 2 seeds: **higher**."
    expected = "- HSQ without shared experts against Query2Label: +0.10 (-0.30 to +0.50), 1 seed: no clear difference."
    assert second == expected
    assert missing.startswith("- Not measured yet: HSQ (16 shared experts) against HSQ without shared experts; ")


def test_pairs_of_the_frequent_labels(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def label(name: str, value: float) -> dict[str, Any]:
        return {"label": name, "difference": value, "interval": [value - 1, value + 1], "significant": value > 1}

    worse = page.FREQUENT[:11]
    labels = [label(name, -0.5 if name in worse else 1.5) for name in page.FREQUENT]
    runs = [{"row": row, "AP": dict.fromkeys(page.FREQUENT, 50.0)} for row in ("q2l", "hsq")]
    alone = [{"row": "hsq", "labels": [label(name, 2.0) for name in page.FREQUENT]}]
    found = {"differences": [gap("hsq", "q2l", [0.1], -1, 1, labels=labels)], "runs": runs, "alone": alone}
    shows(page, monkeypatch, coco_study=found)
    shown = page.joint_table()
    assert "| tv | 50.0 | 50.0 | **+1.5 (+0.5 to +2.5)** |  | **+2.0 (+1.0 to +3.0)** |" in shown
    assert "HSQ is above Query2Label for 4 of these 15 labels: 6 of 105 pairs improve in both labels." in shown
    assert "Of the 15 differences 4 are significant." in shown
