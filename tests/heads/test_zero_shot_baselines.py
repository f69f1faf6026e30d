"""CONSE and Fast0Tag: the kit that all heads pass, and parity with a literal reading of their papers."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from head_kit import CHANNELS, LABELS, HeadKit
from labelwise import heads
from labelwise.core.errors import LabelwiseError
from labelwise.heads.conse import ConseHead
from labelwise.heads.fast0tag import Fast0TagHead
from labelwise.model.model import create_model

WORDS = torch.randn(LABELS, 7, generator=torch.Generator().manual_seed(3))


class TestConse(HeadKit):
    name = "conse"
    options: ClassVar[dict[str, Any]] = {"word_vectors": WORDS, "top": 4}


class TestFast0Tag(HeadKit):
    name = "fast0tag"
    options: ClassVar[dict[str, Any]] = {"word_vectors": WORDS}


class TestFast0TagNetwork(HeadKit):
    name = "fast0tag"
    options: ClassVar[dict[str, Any]] = {"word_vectors": WORDS, "hidden": (11, 9), "dropout": 0.5}


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


@pytest.mark.parametrize("top", [1, 4, 100])
def test_conse_mixes_the_words_of_the_surest_labels(top: int) -> None:
    torch.manual_seed(0)
    head = heads.create("conse", in_features=CHANNELS, labels=LABELS, word_vectors=WORDS, top=top).eval()
    assert isinstance(head, ConseHead)
    x, asked = torch.randn(3, CHANNELS, 2, 2), torch.randn(5, 7)
    other = head.relabelled(list("abcdefghijklm"), list("vwxyz"), asked)
    for image, logits in zip(x, other(x).tolist(), strict=True):
        p = torch.sigmoid(head.classifier.weight @ image.mean(dim=(1, 2)) + head.classifier.bias).tolist()
        surest = sorted(range(LABELS), key=lambda i: -p[i])[:top]
        total = sum(p[i] for i in surest)
        mixture = sum((p[i] / total * WORDS[i] for i in surest), torch.zeros(7))
        assert logits == pytest.approx([cosine(mixture, word) for word in asked], abs=1e-5)


def test_conse_is_trained_as_a_plain_classifier() -> None:
    head = heads.create("conse", in_features=CHANNELS, labels=LABELS, word_vectors=WORDS).train()
    assert isinstance(head, ConseHead)
    x = torch.randn(2, CHANNELS, 3, 3)
    torch.testing.assert_close(head(x), head.classifier(x.mean(dim=(2, 3))))


def test_fast0tag_is_a_linear_map_into_the_words_space() -> None:
    head = heads.create("fast0tag", in_features=CHANNELS, labels=LABELS, word_vectors=WORDS).eval()
    assert isinstance(head, Fast0TagHead)
    x = torch.randn(2, CHANNELS, 3, 3)
    (layer,) = head.direction
    for image, logits in zip(x, head(x), strict=True):
        features = image.mean(dim=(1, 2))
        direction = layer.weight @ (features / features.norm()) + layer.bias
        expected = torch.stack([direction @ (word / word.norm()) for word in WORDS])
        torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("name", ["conse", "fast0tag"])
def test_other_labels_after_training(name: str, tmp_path: Any) -> None:
    """Any list, any order: scores follow the labels, and a model with other labels is saved and loaded as it is."""
    labels = tuple("abcdefghijklm")
    model = create_model("test_resnet", name, labels, weights="none", size=32, word_vectors=WORDS).eval()
    x = torch.randn(2, 3, 32, 32)
    new = torch.randn(1, 7)
    chosen = model.with_labels(["c", "new", "a"], torch.cat([WORDS[2:3], new, WORDS[:1]]))
    torch.testing.assert_close(chosen(x)[:, [2, 0]], model(x)[:, [0, 2]])
    assert not torch.equal(chosen(x)[:, 1], chosen(x)[:, 0])
    chosen.save(tmp_path / "model")
    loaded = type(model).from_pretrained(tmp_path / "model")
    assert loaded.labels == ("c", "new", "a")
    assert torch.equal(loaded(x), chosen(x))
    back = loaded.with_labels(labels, WORDS)  # what the classifier learned is still there
    torch.testing.assert_close(back(x), model(x))


@pytest.mark.parametrize("name", ["conse", "fast0tag"])
def test_word_vectors_are_needed(name: str) -> None:
    with pytest.raises(LabelwiseError, match="need word_vectors"):
        heads.create(name, in_features=CHANNELS, labels=LABELS)
    with pytest.raises(LabelwiseError, match=r"must be \[13, 7\], not \[12, 7\]"):
        heads.create(name, in_features=CHANNELS, labels=LABELS, word_vectors=WORDS[1:])
