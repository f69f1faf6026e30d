"""Trained prompts: what vectors in place of words lead to, on open_clip's own towers of CLIP and SigLIP 2."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from labelwise.core.errors import LabelwiseError
from labelwise.words import WordsConfig, open_words
from labelwise.words.prompts import PromptEncoder

pytest.importorskip("open_clip")
towers = pytest.importorskip("tests.towers")  # needs transformers, too

LABELS = ["dog", "harbour", "sun"]
PHRASES = {"harbour": ("harbour", "boat of a harbour")}


@pytest.fixture(scope="module", params=["clip", "siglip"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("prompts") / request.param
    towers.write_tower(folder, towers.CONFIGS[request.param])
    return f"clip:{folder}"


def words_of(source: str, template: str, **options: object) -> WordsConfig:
    return WordsConfig.model_validate({"source": source, "templates": (template,), "phrases": PHRASES, **options})


def test_the_vectors_of_a_prompts_words_give_the_written_prompt(source: str) -> None:
    words = open_words(words_of(source, "a photo of a {}."))
    prompts = PromptEncoder(words, LABELS)
    assert (prompts.length, prompts.starts_at_words) == (4, True)
    torch.testing.assert_close(prompts(prompts.words), words.vectors(LABELS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("written", ["sun boat of dog a cat {}.", "cat {}."])
def test_more_or_fewer_vectors_than_the_prompt_has_words(source: str, written: str) -> None:
    """The end of the text, from which CLIP takes its embedding, moves along."""
    other = open_words(words_of(source, written))
    vectors = PromptEncoder(other, LABELS).words
    prompts = PromptEncoder(open_words(words_of(source, "a photo of a {}.")), LABELS, length=len(vectors))
    torch.testing.assert_close(prompts(vectors), other.vectors(LABELS), atol=1e-5, rtol=1e-5)
    assert not prompts.starts_at_words


def test_each_label_may_have_its_own(source: str) -> None:
    prompts = PromptEncoder(open_words(words_of(source, "{}.")), LABELS, length=2)
    own = torch.randn(3, 2, prompts.width)
    together = torch.stack([prompts(context)[label] for label, context in enumerate(own)])
    torch.testing.assert_close(prompts(own), together, atol=1e-5, rtol=1e-5)


def test_gradients_reach_the_vectors_and_nothing_else(source: str) -> None:
    words = open_words(words_of(source, "a photo of a {}."))
    before = words.vectors(LABELS)
    prompts = PromptEncoder(words, LABELS)
    context = prompts.words.clone().requires_grad_()
    prompts(context).square()[:, 0].sum().backward()
    assert context.grad is not None
    assert context.grad.abs().sum(dim=1).all()  # of every word
    assert all(parameter.grad is None for parameter in prompts.model.parameters())
    assert torch.equal(words.vectors(LABELS), before)  # the tower that all others use reads words as before


def test_what_has_no_text_tower_or_no_room(source: str, tmp_path: Path) -> None:
    (tmp_path / "table.txt").write_text("dog 1 2\nsun 3 4\n")
    with pytest.raises(LabelwiseError, match=r"through a text tower .*table\.txt' has none"):
        PromptEncoder(open_words(str(tmp_path / "table.txt")), ["dog"])
    with pytest.raises(LabelwiseError, match="give a single one"):
        PromptEncoder(open_words(words_of(source, "", templates=("a {}", "one {}"))), LABELS)
    with pytest.raises(LabelwiseError, match=r"reads 1[26] tokens: too few for 12 vectors .*\(head\.context="):
        PromptEncoder(open_words(words_of(source, "a photo of a {}.")), LABELS, length=12)
