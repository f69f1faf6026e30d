"""What `train --minutes` expects is what the committed results say."""

from __future__ import annotations

import cpu_budget
from labelwise.training import budget
from labelwise.training.budget import Plan


def test_the_planner_has_the_measured_factors() -> None:
    measured = cpu_budget.factors(cpu_budget.read())
    assert measured.pop("twice the epochs") > 0.99  # so it has no longer trainings
    assert measured | {"half the epochs": max(1.0, measured["half the epochs"])} == {
        "288 pixels": budget.LEFT_BY_SIZE[288],
        "gap": budget.LEFT_BY_HEAD["gap"],
        "half the epochs": budget.LEFT_BY_LENGTH[0.5],
        "twice the photos": budget.LEFT_BY_DOUBLING,
    }


def test_ratios_compare_trainings_that_differ_in_one_choice() -> None:
    default = Plan("hsq", 224, 1.0, 1000)
    scores = {default: 80.0, default._replace(size=288): 82.0, default._replace(images=4000): 87.2}
    scores[Plan("gap", 288, 0.5, 500)] = 10.0  # differs from each in more than one
    assert {name: round(left, 6) for name, left in cpu_budget.ratios(scores)} == {
        "288 pixels": 0.9,
        "twice the photos": 0.8,
    }
