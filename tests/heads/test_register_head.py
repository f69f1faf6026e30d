"""A head of one's own: one registration, and it works wherever a built-in head works."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import labelwise as lw
from head_kit import HeadKit
from labelwise import heads
from labelwise.core import plugins
from labelwise.core.errors import LabelwiseError
from labelwise.engines.export import export_model
from labelwise.heads import Head, HeadConfig, as_tokens, checked_words, register_head, unregister_head
from labelwise.model.complexity import measure_complexity
from labelwise.training import load_recipe


class PowerConfig(HeadConfig):
    """Generalised mean pooling and a linear layer.

    Args:
        power: 1 is the average, a large number the maximum.
    """

    kind: str = "power"
    power: float = 3.0


class PowerHead(Head):
    config: PowerConfig

    def __init__(self, config: PowerConfig, in_features: int, labels: int) -> None:
        super().__init__(config, in_features, labels)
        self.classifier = nn.Linear(in_features, labels)

    def forward(self, x: Tensor) -> Tensor:
        tokens, _ = as_tokens(x, self.in_features)
        pooled = tokens.abs().clamp(min=1e-6).pow(self.config.power).mean(dim=1).pow(1 / self.config.power)
        logits: Tensor = self.classifier(pooled)
        return logits


PRESETS = {"power": PowerConfig(), "power-max": PowerConfig(power=8.0)}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register_head(PowerConfig, PRESETS)(PowerHead)
    yield
    unregister_head("power")


class TestPower(HeadKit):
    name = "power"


class TestPowerMax(HeadKit):
    name = "power-max"
    options: ClassVar = {"power": 4.0}


LABELS = ["cat", "dog", "sofa"]


def small_model() -> lw.LabelModel:
    return lw.create_model("test_resnet", "power-max", LABELS, weights="none", size=32, power=5.0).eval()


def test_names_options_and_mistakes() -> None:
    assert heads.list_heads("power*") == ["power", "power-max"]
    assert heads.preset("power-max").option_parts() == {"power": None}
    with pytest.raises(LabelwiseError, match=r"did you mean 'power'\?"):
        heads.create("pover", in_features=4, labels=2)
    with pytest.raises(LabelwiseError, match=r"head 'power': unknown option 'pwer'; did you mean 'power'\?"):
        heads.create("power", in_features=4, labels=2, pwer=2)
    head = heads.create("power", in_features=4, labels=2)
    assert (head.has_attention, head.has_experts, head.takes_words) == (False, False, False)


def test_a_model_is_saved_loaded_optimized_and_exported(tmp_path: Path) -> None:
    model, images = small_model(), torch.randn(2, 3, 32, 32)
    model.save(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["head"] == {"kind": "power", "power": 5.0}
    again = lw.load_model(tmp_path / "m")
    assert again.config == model.config
    assert isinstance(again.head, PowerHead)
    assert torch.equal(again(images), model(images))
    torch.testing.assert_close(model.optimize()(images), model(images), atol=1e-4, rtol=1e-4)
    assert export_model(model, "torch", tmp_path / "exported").kind == "torch"
    assert list(measure_complexity(model).parts) == ["backbone", "classifier"]
    with pytest.raises(LabelwiseError, match="takes new labels"):
        model.with_labels(["cow"])


def test_a_saved_model_needs_its_head(tmp_path: Path) -> None:
    small_model().save(tmp_path / "m")
    content = json.loads((tmp_path / "m" / "config.json").read_text())
    content["head"] = {"kind": "power", "strength": 2}
    (tmp_path / "m" / "config.json").write_text(json.dumps(content))
    with pytest.raises(LabelwiseError, match=r"config\.json: head: unknown key 'strength'; choose one of kind, power"):
        lw.load_model(tmp_path / "m")
    content["head"] = {"kind": "unknown"}
    (tmp_path / "m" / "config.json").write_text(json.dumps(content))
    with pytest.raises(LabelwiseError, match=r"head: unknown kind of head 'unknown'.*import the package"):
        lw.load_model(tmp_path / "m")


def test_a_recipe_names_it_and_the_command_line_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    from labelwise.cli.info import heads as show

    recipe = load_recipe(None, {"model.head": "power", "model.options": {"power": 2.0}})
    assert (recipe.model.head, recipe.model.options) == ("power", {"power": 2.0})
    show("power")
    assert "a large number the maximum" in " ".join(capsys.readouterr().out.split())
    show()
    assert "power-max" in capsys.readouterr().out


class WordConfig(HeadConfig):
    kind: str = "word-toy"
    word_dim: int | None = None

    @property
    def takes_words(self) -> bool:
        return True


class WordHead(Head):
    word_vectors: Tensor

    def __init__(self, config: WordConfig, in_features: int, labels: int, word_vectors: Tensor | None = None) -> None:
        super().__init__(config, in_features, labels)
        self.register_buffer("word_vectors", checked_words(word_vectors, labels, config.word_dim))
        self.project = nn.Linear(in_features, self.word_vectors.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        tokens, _ = as_tokens(x, self.in_features)
        return nn.functional.linear(self.project(tokens.mean(dim=1)), self.word_vectors)


def test_a_head_on_words_takes_new_labels(tmp_path: Path) -> None:
    register_head(WordConfig)(WordHead)
    try:
        words = torch.randn(3, 5)
        model = lw.create_model("test_resnet", "word-toy", LABELS, weights="none", size=32, word_vectors=words).eval()
        other = model.with_labels(["sofa", "cow"], torch.stack((words[2], torch.ones(5))))
        other.save(tmp_path / "m")
        images = torch.randn(2, 3, 32, 32)
        torch.testing.assert_close(lw.load_model(tmp_path / "m")(images)[:, 0], model(images)[:, 2])
    finally:
        unregister_head("word-toy")


def test_names_cannot_be_taken_twice() -> None:
    class Other(PowerHead):
        pass

    class Gap(PowerConfig):
        kind: str = "mine"

    with pytest.raises(LabelwiseError, match="a head of the kind 'power' already"):
        register_head(PowerConfig)(Other)
    with pytest.raises(LabelwiseError, match="a head 'gap' already"):
        register_head(Gap, {"gap": Gap()})(Other)
    register_head(PowerConfig, PRESETS)(PowerHead)  # the same again, as a notebook does
    with pytest.raises(LabelwiseError, match="Nameless has no kind"):
        register_head(type("Nameless", (HeadConfig,), {}))


def test_installed_packages_are_asked_for_their_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_heads.py").write_text(
        "from labelwise.heads import GapHead, HeadConfig, register_head\n"
        "class TheirConfig(HeadConfig):\n    kind: str = 'theirs'\n    dropout: float = 0.0\n"
        "@register_head(TheirConfig)\nclass TheirHead(GapHead):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = [EntryPoint(name, name, "labelwise.heads") for name in ("their_heads", "no_such_module")]
    monkeypatch.setattr(plugins, "entry_points", lambda group: found if group == "labelwise.heads" else [])
    plugins.import_plugins.cache_clear()
    try:
        with pytest.warns(UserWarning, match="'no_such_module' cannot be imported"):
            assert heads.create("theirs", in_features=4, labels=2)(torch.ones(1, 4, 2, 2)).shape == (1, 2)
    finally:
        unregister_head("theirs")
        sys.modules.pop("their_heads")
