"""The page in a real browser: maps, what goes wrong, other labels, every width and colour scheme."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from page_kit import LABELS, MOST_BYTES, Visit
from PIL import Image

from labelwise.model.model import LabelModel
from labelwise.reports.overlay import heat
from labelwise.runtime.tagger import Tagger

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
pytest.importorskip("fastapi", reason="needs the extra serve")


def test_an_image_fills_the_window_with_its_map(browser: Any, address: str, photos: list[str]) -> None:
    visit = Visit(browser, address)
    visit.add(*photos[:2])
    visit.page.get_by_role("button", name="Where it looked", exact=True).first.click()
    card, large = visit.page.locator(".card").first, visit.page.locator("dialog")
    sync_api.expect(card.locator("canvas")).to_be_visible()
    before = card.locator("img").bounding_box()["width"]
    card.get_by_role("button", name="Enlarge").focus()
    visit.page.keyboard.press("Enter")
    assert large.locator("img").bounding_box()["width"] > 1.5 * before
    assert large.locator("canvas").is_visible()
    visit.page.keyboard.press("ArrowRight")
    assert large.locator("b").inner_text() == Path(photos[1]).name
    assert visit.page.get_by_role("button", name="Next image").is_disabled()
    visit.page.keyboard.press("Escape")
    assert large.is_hidden()
    sync_api.expect(visit.page.locator(".card img")).to_have_count(2)  # each is back in its place
    assert visit.complaints() == []


def test_the_map_lies_where_the_model_looked(browser: Any, address: str, photos: list[str], tagger: Tagger) -> None:
    seen = tagger.predict(photos[1])[0]
    warmest = {label: seen.all_scores[label] * heat(seen.attention(label)).max() for label in ("boat", "dog", "sun")}
    label = max(warmest, key=warmest.__getitem__)
    visit = Visit(browser, address)
    visit.add(photos[1])
    card = visit.page.locator(".card")
    card.get_by_role("button", name=re.compile("Show the other")).click()
    card.get_by_role("button", name=f"Where it looked for {label}").focus()
    visit.page.keyboard.press("Enter")
    canvas = card.locator("canvas")
    sync_api.expect(canvas).to_be_visible()
    assert canvas.get_attribute("aria-label") == f"Map of where the model looked for {label}"
    pixels = canvas.evaluate(
        "c => [c.width, c.height, ...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    )
    width, height, *values = pixels
    alpha = np.array(values).reshape(height, width, 4)[..., 3]
    assert 0 < alpha.max() == pytest.approx(255 * warmest[label], abs=2, rel=0.1)  # the score scales it
    attention = seen.attention(label)  # [2, 2]
    hot = np.array(
        [[block.mean() for block in np.split(row, 2, axis=1)] for row in np.split(alpha[: height // 2 * 2], 2)]
    )
    assert np.unravel_index(hot.argmax(), hot.shape) == np.unravel_index(attention.argmax(), attention.shape)
    card.locator(".tools input").evaluate("e => { e.value = 0.3; e.dispatchEvent(new Event('input')); }")
    assert canvas.evaluate("c => c.style.opacity") == "0.3"
    with torch.no_grad():
        image = torch.from_numpy(tagger.input(photos[1]))[None]
        gates = tagger.model.details(image).gates[-1][0, LABELS.index(label)].numpy()  # [n_t + n_s]
    best = ["own", "shared 0", "shared 1", "shared 2"][int(gates.argmax())]
    chart = card.locator(".experts svg")
    assert chart.locator("rect").count() == 4
    assert chart.get_attribute("aria-label") == f"Experts: {best} counts most for {label}, with {gates.max():.2f} of 1"
    visit.page.keyboard.press("Enter")
    sync_api.expect(canvas).to_be_hidden()
    assert visit.complaints() == []


def test_a_bird_of_1_percent_does_not_glow_like_a_cat(browser: Any, address: str, photos: list[str]) -> None:
    visit = Visit(browser, address)
    scores, spot = {"cat": 1.0, "bird": 0.01}, [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    model = {"name": "two", "default": True, "task": "multi-label", "labels": [*scores], "words": False}
    model |= {"thresholds": {"cat": 0.5, "bird": 0.5}, "explain": True, "size": 64, "resize": "squash"}
    answer = {"maps": {"cat": spot, "bird": spot}, "kind": "attention", "experts": None}
    visit.page.route("**/models", lambda route: route.fulfill(json={"models": [model]}))
    visit.page.route("**/predict?*", lambda route: route.fulfill(json={"predictions": [{"all_scores": scores}]}))
    visit.page.route("**/explain?*", lambda route: route.fulfill(json=answer))
    visit.page.reload()
    visit.add(photos[0])
    visit.page.get_by_role("button", name=re.compile("Show the other")).click()
    warm = []
    for label in scores:
        visit.page.get_by_role("button", name=f"Where it looked for {label}").click()
        sync_api.expect(visit.page.locator(".tools b")).to_have_text(label)
        spots = "c => c.getContext('2d').getImageData(c.width / 2, c.height / 2, 1, 1).data[3]"
        warm.append(visit.page.locator("canvas").evaluate(spots))
    assert warm[0] == 255
    assert warm[1] <= 3


def test_what_a_cropping_model_does_not_see_is_dark(browser: Any, address: str, photos: list[str]) -> None:
    visit = Visit(browser, address)
    visit.page.locator("#model").select_option("cropped")
    visit.add(photos[1])  # 150 x 90: it sees the middle 72 x 72
    visit.page.get_by_role("button", name=re.compile("Show the other")).click()
    visit.page.get_by_role("button", name="Where it looked for boat").click()
    canvas = visit.page.locator("canvas")
    sync_api.expect(canvas).to_be_visible()
    spots = """c => [[0.1, 0.5], [0.28, 0.5], [0.72, 0.5], [0.5, 0.08]].map(([x, y]) =>
      [...c.getContext('2d').getImageData(x * c.width, y * c.height, 1, 1).data])"""
    left, inside, also_inside, above = canvas.evaluate(spots)
    assert left == above == [0, 0, 0, left[3]]
    assert left[3] > 150
    assert inside != left
    assert also_inside != left


def test_what_goes_wrong_is_said_at_the_photo(browser: Any, address: str, photos: list[str], tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    noise = np.random.default_rng(0).integers(0, 255, (400, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.png")
    assert (tmp_path / "large.png").stat().st_size > MOST_BYTES
    visit = Visit(browser, address)
    visit.add(photos[0], str(tmp_path / "broken.jpg"), str(tmp_path / "large.png"))
    said = visit.page.locator(".card .message").all_inner_texts()
    assert said[0] == ""
    assert "cannot be decoded" in said[1]
    assert f"{MOST_BYTES:,}" in said[2] or "did not reach the server" in said[2]
    assert visit.page.locator(".card").first.locator(".more, .labels li").count() > 0
    visit.page.get_by_role("button", name="Remove broken.jpg").click()
    sync_api.expect(visit.page.locator(".card")).to_have_count(2)
    assert visit.complaints() == []


def test_a_format_that_the_browser_cannot_show_gets_its_labels(
    browser: Any, address: str, photos: list[str], tagger: Tagger, tmp_path: Path
) -> None:
    Image.open(photos[0]).save(tmp_path / "scan.tiff")
    visit = Visit(browser, address)
    visit.add(str(tmp_path / "scan.tiff"))
    assert visit.shown() == tagger.predict(str(tmp_path / "scan.tiff"))[0].labels
    sync_api.expect(visit.page.locator(".frame")).to_have_text("This browser cannot show the file.")
    visit.page.get_by_role("button", name=re.compile("Show the other")).click()
    visit.page.get_by_role("button", name="Where it looked for dog").click()
    sync_api.expect(visit.page.locator(".message")).to_contain_text("map cannot be shown")
    assert visit.page.locator(".experts rect").count() == 4
    assert visit.complaints() == []


def test_a_busy_server_is_asked_again_and_a_failing_one_on_request(
    browser: Any, address: str, photos: list[str], tagger: Tagger
) -> None:
    visit = Visit(browser, address)
    answers = iter(
        [
            {"status": 429, "headers": {"Retry-After": "1"}, "json": {"error": "the queue is full"}},
            {"status": 503, "json": {"error": "the worker died; send it again"}},
        ]
    )

    def refuse(route: Any) -> None:
        answer = next(answers, None)
        route.continue_() if answer is None else route.fulfill(**answer)

    visit.page.route("**/predict?*", refuse)
    visit.page.set_input_files("#files", photos[0])
    message = visit.page.locator(".card .message")
    sync_api.expect(message).to_have_text("The server is busy; retrying in 1 s …")
    sync_api.expect(message).to_have_text("The worker died; send it again")
    visit.page.get_by_role("button", name="Try again").click()
    visit.settle(1)
    assert visit.shown() == tagger.predict(photos[0])[0].labels
    assert visit.complaints() == []


def test_other_labels_for_a_model_that_works_on_words(
    browser: Any, address: str, photos: list[str], models: dict[str, Path]
) -> None:
    visit = Visit(browser, address)
    visit.add(photos[0])
    visit.page.locator("#model").select_option("words")
    visit.page.get_by_label("Look for other labels").fill(" harbour,seagull , harbour")
    visit.page.get_by_role("button", name="Search").click()
    sync_api.expect(visit.page.locator("#about")).to_have_text("words looks for harbour, seagull.")
    visit.settle(1)
    other = Tagger(LabelModel.from_pretrained(models["words"]).with_labels(["harbour", "seagull"]))
    found = json.loads(visit.saved("Save JSON"))[0]
    prediction = other.predict(photos[0])[0]
    assert found["all_scores"] == pytest.approx(prediction.all_scores, abs=1e-5)
    assert set(found["labels"]) == set(prediction.labels)
    visit.page.get_by_role("button", name="Back to the model's own labels").click()
    sync_api.expect(visit.page.locator("#about")).to_have_text("words looks for dog, sunset.")
    assert visit.complaints() == []


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_and_everything_can_be_read(
    browser: Any, address: str, photos: list[str], width: int, scheme: str
) -> None:
    """WCAG asks for a contrast of 4.5 between text and what is behind it."""
    visit = Visit(browser, address, width, scheme)
    visit.add(*photos[:2])
    visit.page.get_by_role("button", name=re.compile("Show the other")).first.click()
    visit.page.get_by_role("button", name="Where it looked", exact=True).first.click()
    sync_api.expect(visit.page.locator("canvas").first).to_be_visible()
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    out = """() => [...document.querySelectorAll("body *")].filter((e) => !e.closest(".spoken"))
      .filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 120))"""
    assert visit.page.evaluate(out) == []
    measure = """() => {
      const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
      const light = (colour) => {
        const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((v) => linear(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const behind = (e) => {
        const colour = getComputedStyle(e).backgroundColor;
        return colour === "rgba(0, 0, 0, 0)" ? behind(e.parentElement) : light(colour);
      };
      const kinds = "h1, h2, p, small, a, summary, output, button, .label, .score, svg text";
      const texts = [...document.querySelectorAll(kinds)];
      const contrast = texts.filter((e) => e.textContent.trim() && e.checkVisibility() && !e.disabled).map((e) => {
        const style = getComputedStyle(e), back = behind(e);
        const text = light(e.tagName === "text" ? style.fill : style.color);
        return (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
      });
      return [light(getComputedStyle(document.body).backgroundColor), Math.min(...contrast)];
    }"""
    background, contrast = visit.page.evaluate(measure)
    assert (background < 0.05) == (scheme == "dark")
    assert contrast >= 4.5
    assert visit.complaints() == []
