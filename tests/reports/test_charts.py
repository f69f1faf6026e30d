"""Charts: names never lie on each other, and bars are as long as their values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.evaluation import Difference, Interval
from labelwise.reports.charts import Axes, difference_chart, scatter_chart
from report_kit import Page


@given(st.lists(st.tuples(st.floats(60, 400), st.floats(20, 200)), max_size=20), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_names_beside_points_keep_apart(points: list[tuple[float, float]], length: int) -> None:
    axes = Axes((0.0, 1.0), (0.0, 1.0))
    names = [f"{n:02}".ljust(length, "x") for n in range(len(points))]
    boxes = [(x, y) for x, y, _ in axes.beside(points, names)]
    wide = 7.5 * len(names[0]) if names else 0  # of a letter at 13 pixels, generously
    for place, (x, y) in enumerate(boxes):
        assert 0 <= x <= axes.width - wide
        assert not any(abs(x - other) < wide and abs(y - height) < 13 for other, height in boxes[place + 1 :])


def test_bars_go_from_zero_to_their_value() -> None:
    differences = [
        Difference(-0.02, Interval(-0.04, 0.005), 0.2),
        Difference(math.nan, Interval(0, 0), 1),
        Difference(0.04, Interval(0.03, 0.05), 0.01),
    ]
    chart = difference_chart(["down", "nan", "up"], differences, [False, False, True], title="t", shown=3)
    page = Page(chart)
    bars = [values for name, values in page.elements if name == "rect"]
    widths = [float(str(bar["width"]).rstrip("%")) for bar in bars]
    assert widths[0] == pytest.approx(2 * widths[1])
    left = [float(str(bar["x"]).rstrip("%")) for bar in bars]
    assert left[1] + widths[1] == pytest.approx(left[0], abs=0.01)  # both begin at zero
    assert [str(bar["class"]) for bar in bars] == ["bar gain", "bar loss hollow"]
    assert "+4.0" in page.text
    assert "−2.0" in page.text  # noqa: RUF001


def test_points_that_hardly_differ_are_not_torn_apart() -> None:
    page = Page(scatter_chart({"a": (90.0, 95.91), "b": (91.0, 95.92)}, title="t", x_label="x", y_label="y", least=1.0))
    heights = [float(path.split("m")[0].split()[1]) for path in page.attributes("path", "d")]
    assert abs(heights[0] - heights[1]) < 5
