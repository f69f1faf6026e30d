"""A visit to the page of a running server, and small models whose scores differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from labelwise.model.model import LabelModel
from labelwise.runtime.tagger import Tagger

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


class Visit:
    """A person at the page, and all that went wrong there."""

    def __init__(self, browser: Any, address: str, width: int = 1400, scheme: str = "light") -> None:
        from playwright.sync_api import expect  # the tests skip without it

        self.expect = expect
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
        self.expect(self.page.locator("#key-form")).to_be_hidden()
        self.expect(self.page.locator("#about")).to_contain_text("looks for")

    def _local(self, url: str, address: str) -> None:
        if not url.startswith((address, "blob:", "data:")):
            self.wrong.append(f"asked for {url}")

    def add(self, *files: str) -> None:
        self.page.set_input_files("#files", list(files))
        self.settle(len(files))

    def settle(self, count: int) -> None:
        self.expect(self.page.locator(".card")).to_have_count(count)
        self.expect(self.page.locator("[aria-busy]")).to_have_count(0, timeout=30_000)

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
