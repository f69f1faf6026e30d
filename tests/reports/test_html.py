"""The page: well formed, self-contained, and no text can become markup."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from labelwise.reports import DemoPicture, Section, demo_report, write_report
from labelwise.reports.html import Html, tag
from labelwise.reports.svg import line_chart, ticks
from report_kit import Page

EVIL = "<script>alert('1')</script>"


def metrics(mean: float, per_label: dict[str, float | None]) -> dict[str, object]:
    rows = [{"label": label, "AP": value} for label, value in per_label.items()]
    return {"mAP": mean, "CF1": 70.25, "OF1": None, "CP": 60.0, "CR": 50.0, "images": 1200, "per_label": rows}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    picture = Image.new("RGB", (800, 400), (10, 120, 200))
    pictures = [
        DemoPicture(picture, "a & b.jpg", ["sun", EVIL], {"sun": 0.91, "car": 0.6}, {"sun": picture, "car": picture}),
        DemoPicture(picture, "empty.jpg", [], {}),
    ]
    curves = {
        "GAP": [{"epoch": 1, "loss": 0.7, "mAP": 40.0}],
        "HSQ": [{"epoch": 1, "loss": 0.9, "mAP": 30.0}, {"epoch": 2, "loss": float("nan"), "mAP": 55.0}],
    }
    runs = {
        "HSQ": metrics(81.26, {"sun": 90.0, "car": None, EVIL: 95.0}),
        "GAP": metrics(79.33, {"sun": 88.0, "car": 70.0, EVIL: 20.0}),
    }
    path = demo_report(tmp_path_factory.mktemp("page") / "demo", runs, pictures, curves, 142.4)
    assert path.name == "report.html"
    return Page(path.read_text(encoding="utf-8"))


def test_the_page_says_what_was_measured(page: Page) -> None:
    names = [name for name, _ in page.elements]
    assert names.count("html") == names.count("h1") == names.count("title") - _svg_titles(page) == 1
    for words in ("81.3", "79.3", "+2.0", "2 min 22 s", "1,200 test pictures", "70.2", "not defined"):
        assert words in page.text
    assert "1 of 2 found, 1 wrong" in page.text
    assert "right: sun 0.91" in _squeezed(page.text)
    assert "wrong: car 0.60" in _squeezed(page.text)
    assert f"missed: {EVIL}" in page.text
    assert "It named no label." in page.text
    assert "none of the labels" in page.text


def test_a_label_called_script_stays_text(page: Page) -> None:
    assert "script" not in [name for name, _ in page.elements]
    assert EVIL in page.text


def test_nothing_comes_from_outside(page: Page) -> None:
    for attribute in ("src", "href", "srcset", "action", "data", "poster"):
        for name in {name for name, _ in page.elements}:
            assert all(value.startswith("data:") for value in page.attributes(name, attribute))
    style = Path(write_report.__code__.co_filename).with_name("page.css").read_text(encoding="utf-8")
    assert not re.search(r"url\(|@import|https?:", style)
    policy = dict(zip(page.attributes("meta", "http-equiv"), page.attributes("meta", "content")[-1:], strict=False))
    assert "default-src 'none'" in policy["Content-Security-Policy"]
    assert not any(key.startswith("on") for _, values in page.elements for key in values)


def test_every_picture_is_small_and_described(page: Page) -> None:
    assert len(page.attributes("img", "src")) == 4
    assert all(source.startswith("data:image/jpeg;base64,") for source in page.attributes("img", "src"))
    assert max(map(len, page.attributes("img", "src"))) < 20_000  # of 800 x 400 pixels: made smaller
    assert "where it looked for sun" in page.attributes("img", "alt")
    assert all(page.attributes("img", "alt"))


def test_bars_are_as_long_as_their_values(page: Page) -> None:
    bars = [values for name, values in page.elements if name == "rect"]
    widths = [float(str(bar["width"]).rstrip("%")) for bar in bars]
    assert len(bars) == 5  # one of the six values is not defined
    hsq = [w for w, bar in zip(widths, bars, strict=True) if "series-1" in str(bar["class"])]
    assert hsq[0] / hsq[1] == pytest.approx(95 / 90, rel=1e-3)  # the best label first


def test_lines_leave_out_what_is_no_number(page: Page) -> None:
    lines = [values for name, values in page.elements if name == "polyline"]
    in_order = [(str(line["class"]).split()[-1], len(str(line["points"]).split())) for line in lines]
    assert in_order == [("series-1", 2), ("series-2", 1), ("series-1", 1), ("series-2", 1)]  # mAP, then loss
    assert not any("nan" in str(line["points"]) for line in lines)
    assert "no values" in line_chart({"a": []}, title="t", x_label="x", y_label="y")


def test_sections_escape_text_and_keep_html(tmp_path: Path) -> None:
    sections = [Section("a < b", tag("p", EVIL), intro="<i>"), Section("two", Html("<p>kept</p>"))]
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
    page = Page(tag("p", inside, title=attribute))
    assert page.text == inside
    assert page.elements == [("p", {"title": attribute})]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_even_and_around_the_range(low: float, span: float) -> None:
    found = ticks(low, low + span)
    steps = np.diff(found)
    assert 2 <= len(found) <= 8
    assert found[0] <= low + 1e-6 * span
    assert found[-1] >= low + span - 1e-6 * span
    assert steps == pytest.approx(np.full(len(steps), steps[0]), rel=1e-4)


def _svg_titles(page: Page) -> int:
    """Tooltips inside the charts are `title` elements too."""
    drawn = [name for name, _ in page.elements if name in ("circle", "rect", "path")]
    return len(drawn) + sum(
        "name" in str(values.get("class")).split() for name, values in page.elements if name == "text"
    )


def _squeezed(text: str) -> str:
    return " ".join(text.split())
