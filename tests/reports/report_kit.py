"""What the report's tests share: a strict reader of pages, and runs without a training."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import torch

from labelwise.model.model import create_model
from labelwise.training.recipe import load_recipe, save_recipe

VOID = {"meta", "link", "img", "br"}
EVIL = {
    "cloud": "<script>alert(1)</script>",
    "rain": "</script><script>alert(2)</script>",
    "moon": '"><img src=x onerror=alert(3)>',
}


def make_run(
    folder: Path, data: Path, labels: tuple[str, ...], head: str = "gap", seed: int = 0, size: int = 64
) -> Path:
    """What a training leaves behind, without the training."""
    torch.manual_seed(seed)
    options = {} if head == "gap" else {"dim": 16, "widths": [8, 4], "shared_experts": 3}
    model = create_model("test_resnet", head, labels, weights="none", size=size, **options)
    thresholds = tuple(0.45 + 0.01 * n for n in range(len(labels)))
    model.config = model.config.model_copy(update={"thresholds": thresholds, "temperature": 0.8})
    model.save(folder / "model")
    settings = {
        "data.source": str(data),
        "model.backbone": "test_resnet",
        "model.head": head,
        "model.size": size,
        "model.options": options,
        "model.weights": "none",
        "seed": seed,
    }
    save_recipe(load_recipe(None, settings), folder / "recipe.yaml")
    epochs = [{"epoch": n, "loss": 1 / n, "lr": 1e-3, "mAP": 30.0 + n} for n in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs) + '{"epoch": 4, "lo')
    return folder


class Page(HTMLParser):
    """Reads a page strictly: every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self._open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self._open.pop() == name

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["style"], ["script"]):
            self.text += data

    def ids(self) -> list[str]:
        return [str(values["id"]) for _, values in self.elements if "id" in values]

    def attributes(self, name: str, attribute: str) -> list[str]:
        return [values[attribute] or "" for tag, values in self.elements if tag == name and attribute in values]
