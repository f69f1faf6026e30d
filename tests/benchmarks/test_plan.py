"""The page that plans large trainings follows from what was counted, measured and assumed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import plan
from labelwise.training.estimate import GPUS


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(plan.RESULTS.read_text("utf-8"))
    return content


def test_the_page_is_that_of_the_results(result: dict[str, Any]) -> None:
    text = plan.PAGE.read_text("utf-8")
    assert plan.with_results(text, result) == text, "run: python -m benchmarks.plan --page"
    assert {match["name"] for match in plan.SECTION.finditer(text)} == {"assumptions", *plan.WORKS}


@pytest.mark.parametrize("name", plan.WORKS)
def test_the_hours_follow_from_the_assumptions(name: str, result: dict[str, Any]) -> None:
    counted, per_core = result["counted"][name], result["loading"][name]["images_per_second"]
    again = plan.rows(name, result["share_of_peak"], counted, per_core)
    assert again == result["rows"][name], "run: python -m benchmarks.plan"
    work = plan.WORKS[name]
    for row in again:  # by hand: no GPU computes, and no core loads, more than it can
        views = work.images * counted["epochs"]
        speed = GPUS[row["gpu"]].half * 1e12 * result["share_of_peak"] * row["gpus"]
        assert row["hours"] * 3600 >= 0.99 * views * counted["flops_per_image"] / speed
        assert row["hours"] * 3600 >= 0.99 * views / (8 * row["gpus"] * per_core)
        assert row["read_mb_per_second"] == pytest.approx(row["images_per_second"] * work.photo_bytes / 1e6)


def test_operations_are_still_counted_so(result: dict[str, Any]) -> None:
    assert plan.published_share() == pytest.approx(result["share_of_peak"], rel=1e-6)
