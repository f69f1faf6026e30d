"""Pages in a real browser: nothing overlaps or sticks out, no script of a label's name runs, dark is dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labelwise.reports.page import ReportOptions, runs_report

# Texts of one chart whose boxes meet by more than a pixel both ways.
OVERLAPS = """() => {
  const found = [];
  for (const chart of document.querySelectorAll("figure svg")) {
    const texts = [...chart.querySelectorAll("text")];
    const boxes = texts.map((text) => [text.firstChild.data, text.getBoundingClientRect()]);
    boxes.forEach(([a, one], place) => {
      for (const [b, other] of boxes.slice(place + 1)) {
        const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
        const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
        if (wide > 1 && high > 3) found.push(`${chart.getAttribute("aria-label")}: ${a} / ${b}`);
      }
    });
  }
  return found;
}"""
# Elements that reach over the right edge, and are not inside something that scrolls by itself.
STICKS_OUT = """() => [...document.querySelectorAll("main *")]
  .filter((e) => !e.closest(".scroll, pre") && e.getBoundingClientRect().right > innerWidth + 1)
  .map((e) => e.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def pages(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELWISE_CACHE", str(folder / "cache"))
        options = ReportOptions(bootstrap=30, workers=0, images=4, progress=False)
        return {
            "one": runs_report([runs[1]], folder / "one", options),
            "several": runs_report(runs, folder / "all", options),
        }


def opened(browser: Any, path: Path, width: int, scheme: str = "light") -> tuple[Any, list[str]]:
    """The page, and all that went wrong on it so far."""
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None)
    page.goto(path.as_uri())
    return page, wrong


@pytest.mark.parametrize("name", ["one", "several"])
@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_overlaps_sticks_out_or_complains(browser: Any, pages: dict[str, Path], name: str, width: int) -> None:
    page, wrong = opened(browser, pages[name], width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(STICKS_OUT) == []
    assert page.evaluate(OVERLAPS) == []
    assert wrong == []
    pictures = page.evaluate("[...document.images].map((i) => i.complete && i.naturalWidth)")
    assert pictures
    assert all(pictures)


def test_a_tooltip_opens_without_a_mouse(browser: Any, pages: dict[str, Path]) -> None:
    page, _ = opened(browser, pages["one"], 400)
    page.locator("abbr").first.focus()
    tip = "(e) => [getComputedStyle(e, '::after').content.slice(1, -1), e.title]"
    shown, title = page.locator("abbr").first.evaluate(tip)
    assert shown == title
    assert len(title) > 20
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_dark_is_dark_and_every_text_can_be_read(browser: Any, pages: dict[str, Path]) -> None:
    """WCAG asks for a contrast of 4.5 between text and what is behind it."""
    measure = """() => {
      const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
      const light = (colour) => {
        const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((v) => linear(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const surface = light(getComputedStyle(document.querySelector(".chart")).backgroundColor);
      const texts = [...document.querySelectorAll(".chart text")].map((e) => getComputedStyle(e).fill)
        .concat([...document.querySelectorAll("p, th, td, summary")].map((e) => getComputedStyle(e).color));
      const contrast = texts.map(light).map((t) => (Math.max(t, surface) + 0.05) / (Math.min(t, surface) + 0.05));
      return [light(getComputedStyle(document.body).backgroundColor), Math.min(...contrast)];
    }"""
    for scheme in ("light", "dark"):
        background, contrast = opened(browser, pages["several"], 1400, scheme)[0].evaluate(measure)
        assert (background < 0.05) == (scheme == "dark")
        assert contrast >= 4.5


def test_any_two_labels_can_be_chosen(browser: Any, pages: dict[str, Path]) -> None:
    page, wrong = opened(browser, pages["several"], 1400)
    across, upwards = page.locator("#choose-pair select").all()
    marks = page.locator("#choose-pair svg path")
    assert marks.count() == 4  # a mark for each run
    before = marks.first.get_attribute("d")
    names = across.locator("option").all_inner_texts()
    assert "<script>alert(1)</script>" in names  # a label like any other
    across.select_option("0")
    upwards.select_option("12")
    assert marks.first.get_attribute("d") != before
    said = page.locator("#choose-pair .note").inner_text()
    assert said.startswith(f"y axis: AP of {names[12]}. Upper right is better. Absolute gap: gap <u>run ")
    assert wrong == []


def test_without_scripts_the_page_is_whole(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(pages["several"].as_uri())
    assert page.locator("#choose-pair").is_hidden()
    assert page.locator("section").count() >= 12
