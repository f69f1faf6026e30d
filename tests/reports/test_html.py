"""The page: well formed, self-contained, and no text can become markup."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from labelwise.reports import Section, write_report
from labelwise.reports.charts import Row, line_chart, row_chart, ticks
from labelwise.reports.html import Html, part
from labelwise.reports.overlay import data_uri
from report_kit import Page

EVIL = "<script>alert('1')</script>"


def test_the_page_is_well_formed_and_nothing_comes_from_outside(tmp_path: Path) -> None:
    image = data_uri(Image.new("RGB", (800, 400), (10, 120, 200)))
    card = {
        "uri": image,
        "name": "a & b.jpg",
        "path": "photos/a & b.jpg",
        "truth": ["sun", EVIL],
        "missed": [EVIL],
        "wrong": 1,
        "predicted": [
            {"label": "sun", "score": 0.911, "right": True, "uri": image},
            {"label": "car", "score": 0.6, "right": False, "uri": image},
        ],
    }
    empty = {
        "uri": image,
        "name": "empty.jpg",
        "path": "empty.jpg",
        "truth": [],
        "missed": [],
        "wrong": 0,
        "predicted": [],
    }
    body = part("parts.html", "predictions", cards=[card, empty])
    file = write_report(tmp_path / "x.html", title="t", sections=[Section("Predictions", body)], contents=True)
    page = Page(file.read_text(encoding="utf-8"))
    names = [name for name, _ in page.elements]
    assert names.count("html") == names.count("h1") == names.count("title") == 1
    assert "script" not in names
    text = " ".join(page.text.split())
    for words in (
        "1 of 2 found, 1 wrong",
        "right: sun 0.91",
        "wrong: car 0.60",
        f"missed: {EVIL}",
        "No label predicted.",
    ):
        assert words in text
    for attribute in ("src", "srcset", "action", "data", "poster"):
        for name in set(names):
            assert all(value.startswith("data:") for value in page.attributes(name, attribute))
    assert all(value.startswith(("data:", "#")) for name in set(names) for value in page.attributes(name, "href"))
    style = Path(write_report.__code__.co_filename).with_name("page.css").read_text(encoding="utf-8")
    assert not re.search(r"url\(|@import|https?:", style)
    policy = dict(zip(page.attributes("meta", "http-equiv"), page.attributes("meta", "content")[-1:], strict=False))
    assert "default-src 'none'" in policy["Content-Security-Policy"]
    assert not any(key.startswith("on") for _, values in page.elements for key in values)
    assert max(map(len, page.attributes("img", "src"))) < 20_000  # of 800 x 400 pixels: made smaller
    assert "attention for sun" in page.attributes("img", "alt")
    assert all(page.attributes("img", "alt"))


def test_bars_are_as_long_as_their_values() -> None:
    page = Page(row_chart([Row("sun", 95.0), Row(EVIL, 90.0), Row("car", np.nan)], title="AP", style="bars"))
    bars = [values for name, values in page.elements if name == "rect"]
    assert len(bars) == 2  # one of the three values is not defined
    first, second = (float(str(bar["width"]).rstrip("%")) for bar in bars)
    assert first / second == pytest.approx(95 / 90, rel=1e-3)
    assert "not defined" in page.text


def test_lines_leave_out_what_is_no_number() -> None:
    page = Page(line_chart({"a": [(1, 0.9), (2, float("nan"))], "b": [(1, 0.7)]}, title="t", x_label="x", y_label="y"))
    lines = [values for name, values in page.elements if name == "polyline"]
    in_order = [(str(line["class"]).split()[-1], len(str(line["points"]).split())) for line in lines]
    assert in_order == [("series-1", 1), ("series-2", 1)]
    assert not any("nan" in str(line["points"]) for line in lines)
    assert "no values" in line_chart({"a": []}, title="t", x_label="x", y_label="y")


def test_sections_escape_text_and_keep_html(tmp_path: Path) -> None:
    sections = [
        Section("a < b", part("charts.html", "no_values", title=EVIL), intro="<i>"),
        Section("two", Html("<p>kept</p>")),
    ]
    text = write_report(
        tmp_path / "new" / "x.html", title=EVIL, sections=sections, lead="1 < 2", footer="<"
    ).read_text()
    page = Page(text)
    assert [name for name, _ in page.elements].count("p") == 4
    assert "script" not in [name for name, _ in page.elements]
    assert "a < b" in page.text
    assert "1 < 2" in page.text


@given(st.text(), st.text())
def test_any_text_survives_the_way_through_html(inside: str, attribute: str) -> None:
    if "\r" in inside + attribute or "\0" in inside + attribute:
        return  # HTML itself replaces these two
    image = {"uri": "", "reason": "", "name": "", "path": attribute}
    card = {"image": image, "label": inside, "text": "", "present": []}
    page = Page(str(part("parts.html", "image_cards", cards=[card], empty="")))
    assert inside in page.text
    assert page.attributes("small", "title") == [attribute]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_even_and_around_the_range(low: float, span: float) -> None:
    found = ticks(low, low + span)
    steps = np.diff(found)
    assert 2 <= len(found) <= 8
    assert found[0] <= low + 1e-6 * span
    assert found[-1] >= low + span - 1e-6 * span
    assert steps == pytest.approx(np.full(len(steps), steps[0]), rel=1e-4)
