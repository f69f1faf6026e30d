"""The page of a real `labelwise serve` process in a real browser: what it shows is what the model says."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from zipfile import ZipFile

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from labelwise.data import open_data
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.sample import make_sample
from labelwise.model.model import LabelModel, create_model
from labelwise.reports.overlay import heat
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
    told = create_model("test_resnet", "c-tran", LABELS, encoder_layers=1, **small)
    spread(told, photos).save(root / "told")
    return {name: root / name for name in ("first", "cropped", "words", "told")}


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

    def download(self, button: str) -> tuple[str, bytes]:
        with self.page.expect_download() as download:
            self.page.get_by_role("button", name=button).click()
        return download.value.suggested_filename, Path(download.value.path()).read_bytes()

    def saved(self, button: str) -> str:
        return self.download(button)[1].decode()

    def names(self) -> list[str]:
        """The images that are shown, in their order."""
        return list(self.page.locator(".card:visible h2").all_inner_texts())

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


def test_moved_thresholds_stay_over_a_reload(browser: Any, address: str, photos: list[str]) -> None:
    visit = Visit(browser, address)
    visit.slide("Threshold of dog", 0.03)
    visit.page.reload()
    visit.page.get_by_label("API key").fill(KEY)
    visit.page.get_by_role("button", name="Use this key").click()
    visit.add(photos[0])
    sliders = {label: visit.page.get_by_label(f"Threshold of {label}", exact=True) for label in ("dog", "sun")}
    assert sliders["dog"].input_value() == "0.03"
    own = sliders["sun"].input_value()
    visit.page.get_by_role("button", name="Reset to the model's").click()
    assert sliders["dog"].input_value() != "0.03"
    assert sliders["sun"].input_value() == own
    visit.page.locator("#model").select_option("cropped")  # another model has its own
    assert sliders["dog"].input_value() != "0.03"
    assert visit.complaints() == []


def test_images_are_filtered_and_sorted_by_label(browser: Any, address: str, photos: list[str], tagger: Tagger) -> None:
    visit = Visit(browser, address)
    visit.add(*photos)
    expected = tagger.predict(photos)
    names = [Path(str(p.image)).name for p in expected]
    with_dog = [name for name, p in zip(names, expected, strict=True) if "dog" in p.labels]
    assert 0 < len(with_dog) < 4
    visit.page.get_by_placeholder("any label").fill("dog")
    assert visit.names() == with_dog
    visit.page.locator("#which").select_option("without")
    assert visit.names() == [name for name in names if name not in with_dog]
    assert f"{len(with_dog)} not shown" in visit.page.locator("#summary").inner_text()
    visit.page.locator("#which").select_option("all")
    visit.page.locator("#sort").select_option("lowest")
    ranked = sorted(zip(names, expected, strict=True), key=lambda one: one[1].all_scores["dog"])
    assert visit.names() == [name for name, _ in ranked]
    assert len(json.loads(visit.saved("Save JSON"))) == 4  # whatever is shown
    assert visit.complaints() == []


def test_corrections_reach_the_table_and_the_sidecars(
    browser: Any, address: str, photos: list[str], tagger: Tagger, tmp_path: Path
) -> None:
    visit = Visit(browser, address)
    visit.add(*photos)
    labels = [list(p.labels) for p in tagger.predict(photos)]
    place = next(n for n in range(4) if labels[n])
    card = visit.page.locator(".card").nth(place)
    card.get_by_role("checkbox", name=re.compile(f"^{re.escape(labels[place][0])}: ")).focus()
    visit.page.keyboard.press("Space")
    assert visit.page.evaluate("document.activeElement.dataset.label") == labels[place][0]  # the keyboard stays there
    for wrong, right in ((" R&D <b> ", "R&D <b>"), ("a | b", "a | b")):
        card.get_by_label("Add a label to").fill(wrong)
        visit.page.keyboard.press("Enter")
        labels[place].append(right)
    del labels[place][0]
    assert visit.shown(place) == labels[place]
    assert "3 corrected" in visit.page.locator("#summary").inner_text()
    table = tmp_path / "labels.csv"
    table.write_bytes(visit.download("Save CSV")[1])
    found = open_data(f"{table}?check_files=no")
    assert [sorted(found.present(n)) for n in range(4)] == [sorted(one) for one in labels]

    name, content = visit.download("Save XMP")
    assert name == "labels-xmp.zip"
    with ZipFile(BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [f"{Path(photo).stem}.xmp" for photo in photos]
        for file, expected in zip(archive.namelist(), labels, strict=True):
            words = ElementTree.fromstring(archive.read(file)).iter("{http://www.w3.org/1999/02/22-rdf-syntax-ns#}li")
            assert [word.text for word in words] == expected
    card.get_by_role("checkbox", name=re.compile("corrected$")).click()  # what the model says is no correction
    assert "2 corrected" in visit.page.locator("#summary").inner_text()
    visit.page.locator("#which").select_option("corrected")
    assert visit.names() == [Path(photos[place]).name]
    assert visit.complaints() == []


def test_corrected_labels_are_told_to_a_model_that_can_use_them(
    browser: Any, address: str, photos: list[str], models: dict[str, Path]
) -> None:
    visit, tagger = Visit(browser, address), Tagger(LabelModel.from_pretrained(models["told"]))
    switch = visit.page.get_by_label("Labels that you correct are known to the model")
    assert switch.is_hidden()  # the first model cannot
    visit.page.locator("#model").select_option("told")
    visit.add(photos[0])
    card = visit.page.locator(".card").first

    def scores() -> dict[str, float]:
        visit.settle(1)
        (found,) = json.loads(visit.saved("Save JSON"))
        return dict(found["all_scores"])

    (alone,) = tagger.predict(photos[0])
    (there,) = tagger.predict(photos[0], known={"sun": "sun" not in alone.labels})
    assert scores() == pytest.approx(alone.all_scores, abs=1e-5)
    card.get_by_role("button", name="Show the other").click()
    card.get_by_role("checkbox", name=re.compile("^sun: ")).click()
    visit.settle(1)
    assert visit.page.evaluate("document.activeElement.dataset.label") == "sun"  # the keyboard stays there
    assert scores() == pytest.approx(there.all_scores, abs=1e-5)
    switch.click()
    assert scores() == pytest.approx(alone.all_scores, abs=1e-5)
    switch.click()
    assert scores() == pytest.approx(there.all_scores, abs=1e-5)
    card.get_by_role("checkbox", name=re.compile("^sun: ")).click()  # what the model says is no correction
    assert scores() == pytest.approx(alone.all_scores, abs=1e-5)
    assert visit.complaints() == []


def test_known_labels_over_http(address: str, photos: list[str], models: dict[str, Path]) -> None:
    tagger, body = Tagger(LabelModel.from_pretrained(models["told"])), Path(photos[0]).read_bytes()

    def ask(path: str, **query: str) -> tuple[int, dict[str, Any]]:
        answer = httpx.post(f"{address}/models/{path}", params=query, content=body, headers={"X-API-Key": KEY})
        return answer.status_code, answer.json()

    expected = tagger.predict(photos[0], known={"sun": True, "boat": False})[0]
    status, found = ask("told/predict", known="sun", known_absent="boat", all_scores="true")
    assert status == 200
    assert found["predictions"][0]["all_scores"] == pytest.approx(expected.all_scores, abs=1e-5)
    status, found = ask("told/explain", known="sun", known_absent="boat", labels="dog")
    assert found["labels"] == pytest.approx(expected.all_scores, abs=1e-5)
    np.testing.assert_allclose(found["maps"]["dog"], expected.attention("dog"), atol=1e-5)
    for path, query, said in (
        ("first/predict", {"known": "sun"}, "the model 'first' cannot use known labels; leave them out (see /models)"),
        ("told/predict", {"known": "sum"}, "unknown label 'sum'; did you mean 'sun'?"),
        ("told/predict", {"known": "sun", "known_absent": "sun"}, "'sun' cannot be known to be there and to be absent"),
        ("told/predict", {"known_absent": " ,"}, "known_absent is empty"),
    ):
        status, found = ask(path, **query)
        assert (status, found["error"][: len(said)]) == (422, said)


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
