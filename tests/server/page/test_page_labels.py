"""The page of a real `labelwise serve` process in a real browser: what it shows is what the model says."""

from __future__ import annotations

import csv
import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from zipfile import ZipFile

import httpx
import numpy as np
import pytest
from page_kit import KEY, Visit

from labelwise.data import open_data
from labelwise.model.model import LabelModel
from labelwise.runtime.tagger import Tagger

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
pytest.importorskip("fastapi", reason="needs the extra serve")


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
