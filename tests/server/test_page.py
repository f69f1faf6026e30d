"""The page of a real `labelwise serve` process in a real browser: what it shows is what the model says."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from labelwise.data.preprocessing import Preprocessing
from labelwise.data.sample import make_sample
from labelwise.model.model import LabelModel, create_model
from labelwise.runtime.tagger import Tagger
from serving_kit import running

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
pytest.importorskip("fastapi", reason="needs the extra serve")

LABELS = ("boat", "7", "<img src=x onerror=alert(1)>", "dog", "sun")  # JavaScript sorts "7" first if one lets it
WORDS = ("harbour", "seagull", "dog", "sunset")
KEY = "a key of this test"
MOST_BYTES = 400_000


def spread(model: LabelModel, photos: list[str]) -> LabelModel:
    """Random weights say 0.5 of everything: spread the scores, and put each threshold into the middle of them."""
    tagger = Tagger(model)
    raw = np.array([[p.all_scores[label] for label in model.labels] for p in tagger.predict(photos)])  # [M, N]
    temperature = float(np.std(np.log(raw / (1 - raw)))) / 2
    model.config = model.config.model_copy(update={"temperature": temperature})
    scores = np.array([[p.all_scores[label] for label in model.labels] for p in Tagger(model).predict(photos)])
    model.config = model.config.model_copy(update={"thresholds": tuple(np.median(scores, axis=0).tolist())})
    return model


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("photos")
    images = list(make_sample(folder, images=4, size=96).images)
    Image.open(images[1]).resize((150, 90)).save(images[1])  # not all are squares
    return images


@pytest.fixture(scope="module")
def models(photos: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small = {"weights": "none", "size": 64, "dim": 16}
    hsq = create_model("test_resnet", "hsq", LABELS, widths=[8, 4], shared_experts=3, **small)
    spread(hsq, photos).save(root / "first")
    crop = hsq.config.model_copy(update={"preprocessing": Preprocessing(size=64, resize="crop", crop_ratio=0.8)})
    hsq.config = crop
    spread(hsq, photos).save(root / "cropped")
    (root / "words.txt").write_text("".join(f"{word} {n} {n % 2} {3 - n}\n" for n, word in enumerate(WORDS)))
    words = create_model(
        "test_resnet", "ml-decoder", WORDS[2:], words=str(root / "words.txt"), queries="words", **small,
        classifier="shared", groups=None,
    )  # fmt: skip
    spread(words, photos).save(root / "words")
    return {name: root / name for name in ("first", "cropped", "words")}


@pytest.fixture(scope="module")
def address(models: dict[str, Path]) -> Iterator[str]:
    arguments = ["--engine", "torch", "--max-bytes", MOST_BYTES]
    with running(*models.values(), *arguments, warm_workers=True, LABELWISE_API_KEY=KEY) as server:
        yield server.address


class Visit:
    """A person at the page, and all that went wrong there."""

    def __init__(self, browser: Any, address: str, width: int = 1400, scheme: str = "light") -> None:
        viewport = {"width": width, "height": 900}
        self.page = browser.new_context(viewport=viewport, color_scheme=scheme, accept_downloads=True).new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(f"console {message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self._local(request.url, address))
        self.page.goto(address)
        self.page.get_by_label("API key").fill(KEY)
        self.page.get_by_role("button", name="Use this key").click()
        sync_api.expect(self.page.locator("#key-form")).to_be_hidden()
        sync_api.expect(self.page.locator("#about")).to_contain_text("looks for")

    def _local(self, url: str, address: str) -> None:
        if not url.startswith((address, "blob:", "data:")):
            self.wrong.append(f"asked for {url}")

    def add(self, *files: str) -> None:
        self.page.set_input_files("#files", list(files))
        self.settle(len(files))

    def settle(self, count: int) -> None:
        sync_api.expect(self.page.locator(".card")).to_have_count(count)
        sync_api.expect(self.page.locator("[aria-busy]")).to_have_count(0, timeout=30_000)

    def shown(self, card: int = 0) -> list[str]:
        return list(self.page.locator(".card").nth(card).locator("li:not(.below) .label").all_inner_texts())

    def slide(self, name: str, value: float) -> None:
        slider = self.page.get_by_label(name, exact=True)
        slider.evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", value)
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def saved(self, button: str) -> str:
        with self.page.expect_download() as download:
            self.page.get_by_role("button", name=button).click()
        return Path(download.value.path()).read_text(encoding="utf-8")

    def complaints(self) -> list[str]:
        """All but the browser's own line for a request that was meant to be refused."""
        return [text for text in self.wrong if "Failed to load resource" not in text]


@pytest.fixture(scope="module")
def tagger(models: dict[str, Path]) -> Tagger:
    return Tagger(LabelModel.from_pretrained(models["first"]))


def test_what_it_shows_is_what_the_model_says(browser: Any, address: str, photos: list[str], tagger: Tagger) -> None:
    visit = Visit(browser, address)
    visit.add(*photos)
    expected = tagger.predict(photos)
    assert any(p.labels for p in expected)
    assert [visit.shown(n) for n in range(4)] == [p.labels for p in expected]
    for found, p in zip(json.loads(visit.saved("Save JSON")), expected, strict=True):
        assert found["image"] == Path(str(p.image)).name
        assert set(found["labels"]) == set(p.labels)
        assert found["all_scores"] == pytest.approx(p.all_scores, abs=1e-5)
    rows = list(csv.DictReader(visit.saved("Save CSV").splitlines()))
    assert [row["labels"] for row in rows] == ["|".join(p.labels) for p in expected]
    alt = visit.page.locator(".card img").first.get_attribute("alt")
    assert alt == f"{Path(photos[0]).name}: {', '.join(expected[0].labels) or 'no label applies'}"
    assert visit.complaints() == []


def test_photos_can_be_dropped_and_pasted(browser: Any, address: str, photos: list[str], tagger: Tagger) -> None:
    visit = Visit(browser, address)
    bring = """([kind, bytes]) => {
      const carried = new DataTransfer();
      carried.items.add(new File([new Uint8Array(bytes)], `${kind}.jpg`, { type: "image/jpeg" }));
      const options = { bubbles: true, cancelable: true };
      dispatchEvent(kind === "drop" ? new DragEvent(kind, { ...options, dataTransfer: carried })
        : new ClipboardEvent(kind, { ...options, clipboardData: carried }));
    }"""
    for kind, photo in zip(("drop", "paste"), photos, strict=False):
        visit.page.evaluate(bring, [kind, list(Path(photo).read_bytes())])
    visit.settle(2)
    assert visit.page.locator(".card h2").all_inner_texts() == ["drop.jpg", "paste.jpg"]
    assert [visit.shown(n) for n in range(2)] == [p.labels for p in tagger.predict(photos[:2])]
    assert visit.complaints() == []


def test_thousands_of_labels_stay_usable(browser: Any, address: str, photos: list[str]) -> None:
    visit = Visit(browser, address)
    names = [f"label {n}" for n in range(9605)]
    model = {"name": "many", "default": True, "task": "multi-label", "labels": names, "words": False, "explain": False}
    model |= {"thresholds": dict.fromkeys(names, 0.5), "size": 64, "resize": "squash", "crop_ratio": 1.0}
    scores = {name: round(1 / (1 + place), 6) for place, name in enumerate(reversed(names))}
    visit.page.route("**/models", lambda route: route.fulfill(json={"models": [model]}))
    visit.page.route("**/predict?*", lambda route: route.fulfill(json={"predictions": [{"all_scores": scores}]}))
    visit.page.reload()
    sync_api.expect(visit.page.locator("#about")).to_contain_text("9,593 others")
    visit.add(*photos)
    assert visit.shown() == ["label 9604", "label 9603"]
    sliders = visit.page.locator("#sliders li")
    assert sliders.count() == 60
    assert sliders.first.inner_text().startswith("label 9604")  # those that came up first
    visit.page.get_by_placeholder("Find a label").fill("label 123")
    assert sliders.count() == 11
    seconds = visit.page.evaluate("""async () => {
      const all = document.getElementById("all"), start = performance.now();
      for (let step = 1; step <= 10; step++) {
        all.value = step / 100;
        all.dispatchEvent(new Event("input"));
        await new Promise(requestAnimationFrame);
      }
      return (performance.now() - start) / 1000;
    }""")
    assert seconds < 5
    assert visit.complaints() == []


def test_a_single_label_model_has_no_thresholds(browser: Any, address: str, photos: list[str]) -> None:
    visit = Visit(browser, address)
    model = {"name": "one", "default": True, "task": "single-label", "labels": ["cat", "dog"], "words": False}
    model |= {"thresholds": {"cat": 0.5, "dog": 0.5}, "explain": False, "size": 64, "resize": "squash"}
    answer = {"predictions": [{"all_scores": {"dog": 0.4, "cat": 0.3}}]}
    visit.page.route("**/models", lambda route: route.fulfill(json={"models": [model]}))
    visit.page.route("**/predict?*", lambda route: route.fulfill(json=answer))
    visit.page.reload()
    visit.add(photos[0])
    assert visit.shown() == ["dog"]
    assert visit.page.locator("#thresholds").is_hidden()
    assert visit.page.locator(".bar s").count() == 0
    assert visit.complaints() == []


def test_sliders_choose_at_once_and_can_be_reset(browser: Any, address: str, photos: list[str], tagger: Tagger) -> None:
    visit = Visit(browser, address)
    visit.add(*photos)
    asked: list[str] = []
    visit.page.on("request", lambda request: asked.append(request.url))
    before = [visit.shown(n) for n in range(4)]
    place = next(n for n in range(4) if before[n])
    label = before[place][0]
    visit.slide(f"Threshold of {label}", 1)
    assert visit.shown(place) == before[place][1:]
    visit.slide("All labels", 0)
    ranked = [list(p.all_scores) for p in tagger.predict(photos)]
    assert [visit.shown(n) for n in range(4)] == ranked
    visit.slide("All labels", 1)
    assert [visit.shown(n) for n in range(4)] == [[]] * 4
    assert f"No label applies; the best is {ranked[0][0]} with" in visit.page.locator(".card").first.inner_text()
    visit.page.get_by_role("button", name="Reset to the model's").click()
    visit.page.wait_for_timeout(50)
    assert [visit.shown(n) for n in range(4)] == before
    assert asked == []  # all of this without the server


def test_the_map_lies_where_the_model_looked(browser: Any, address: str, photos: list[str], tagger: Tagger) -> None:
    visit = Visit(browser, address)
    visit.add(photos[1])
    card = visit.page.locator(".card")
    card.get_by_role("button", name=re.compile("Show the other")).click()
    card.get_by_role("button", name=re.compile("^dog: ")).focus()
    visit.page.keyboard.press("Enter")
    canvas = card.locator("canvas")
    sync_api.expect(canvas).to_be_visible()
    assert canvas.get_attribute("aria-label") == "Map of where the model looked for dog"
    pixels = canvas.evaluate(
        "c => [c.width, c.height, ...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    )
    width, height, *values = pixels
    alpha = np.array(values).reshape(height, width, 4)[..., 3]
    assert alpha.max() > 0
    attention = tagger.predict(photos[1])[0].attention("dog")  # [2, 2]
    hot = np.array(
        [[block.mean() for block in np.split(row, 2, axis=1)] for row in np.split(alpha[: height // 2 * 2], 2)]
    )
    assert np.unravel_index(hot.argmax(), hot.shape) == np.unravel_index(attention.argmax(), attention.shape)
    card.locator(".tools input").evaluate("e => { e.value = 0.3; e.dispatchEvent(new Event('input')); }")
    assert canvas.evaluate("c => c.style.opacity") == "0.3"
    with torch.no_grad():
        image = torch.from_numpy(tagger.input(photos[1]))[None]
        gates = tagger.model.details(image).gates[-1][0, LABELS.index("dog")].numpy()  # [n_t + n_s]
    best = ["own", "shared 0", "shared 1", "shared 2"][int(gates.argmax())]
    chart = card.locator(".experts svg")
    assert chart.locator("rect").count() == 4
    assert chart.get_attribute("aria-label") == f"Experts: {best} counts most for dog, with {gates.max():.2f} of 1"
    visit.page.keyboard.press("Enter")
    sync_api.expect(canvas).to_be_hidden()
    assert visit.complaints() == []


def test_what_a_cropping_model_does_not_see_is_dark(browser: Any, address: str, photos: list[str]) -> None:
    visit = Visit(browser, address)
    visit.page.locator("#model").select_option("cropped")
    visit.add(photos[1])  # 150 x 90: it sees the middle 72 x 72
    visit.page.get_by_role("button", name=re.compile("Show the other")).click()
    visit.page.get_by_role("button", name=re.compile("^boat: ")).click()
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
    visit.page.get_by_role("button", name=re.compile("^dog: ")).click()
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
    visit.page.locator(".labels button").first.click()
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
