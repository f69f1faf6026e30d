"""Text-aligned heads: the kit that all heads pass, a literal reading of the formula, prompts and new labels."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from head_kit import CHANNELS, LABELS, HeadKit
from labelwise import heads
from labelwise.core.errors import LabelwiseError

WORDS = torch.randn(LABELS, 7, generator=torch.Generator().manual_seed(3))


class TestTextAligned(HeadKit):
    name = "text-aligned"
    options: ClassVar[dict[str, Any]] = {"word_vectors": WORDS}


class TestOnAClassToken(HeadKit):
    name = "text-aligned"
    options: ClassVar[dict[str, Any]] = {"word_vectors": WORDS, "pool": "token", "patch_weight": 0.5}


class TestOnAnAttentionPool(HeadKit):
    name = "text-aligned"
    options: ClassVar[dict[str, Any]] = {
        "word_vectors": torch.randn(LABELS, CHANNELS, generator=torch.Generator().manual_seed(4)),
        "pool": "attention",
        "project": False,
        "attention_heads": 2,
        "feedforward": 9,
        "activation": "gelu-tanh",
        "patch_weight": 0.5,
    }


def trained(head: heads.Head) -> heads.Head:
    """With prompts, weight and bias as if they had been trained."""
    generator = torch.Generator().manual_seed(5)
    for name in ("residuals", "negative"):
        parameter = head.get_parameter(name)
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    head.logit_bias.data.fill_(-1.5)
    return head


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


@torch.no_grad()
def test_the_formula_label_by_label_and_patch_by_patch() -> None:
    head = trained(TestOnAClassToken().head())
    x = torch.randn(2, CHANNELS, 2, 3)
    logits, maps = head(x), head.details(x).label_attention
    width, scale = CHANNELS // 2, math.exp(float(head.logit_scale))
    for b in range(2):
        token = head.project(x[b, width:].mean(dim=(1, 2)))
        for n in range(LABELS):
            text = F.normalize(WORDS[n] / WORDS[n].norm() + 0.5 * head.residuals[n], dim=0)

            def similarity(vector: Tensor, text: Tensor = text) -> float:
                return scale * (cosine(vector, text) - float(F.normalize(vector, dim=0) @ head.negative))

            patches = [similarity(head.project(x[b, :width, i, j])) for i in range(2) for j in range(3)]
            shares = [math.exp(p) / sum(math.exp(q) for q in patches) for p in patches]
            pooled = sum(share * p for share, p in zip(shares, patches, strict=True))
            assert float(logits[b, n]) == pytest.approx(0.5 * similarity(token) + 0.5 * pooled - 1.5, abs=1e-4)
            torch.testing.assert_close(maps[b, n].flatten(), torch.tensor(shares), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("class_context", [False, True])  # True is not used, but may be given
def test_known_labels_keep_their_prompts_and_new_ones_start_at_their_words(class_context: bool) -> None:
    head, x = trained(TestTextAligned().head(class_context=class_context)), torch.randn(2, CHANNELS, 3, 3)
    names = [f"label {i}" for i in range(LABELS)]
    new = torch.randn(1, 7)
    other = head.relabelled(names, ["label 4", "seagull", "label 2"], torch.cat((WORDS[4:5], new, WORDS[2:3])))
    logits = other(x)
    torch.testing.assert_close(logits[:, [0, 2]], head(x)[:, [4, 2]])
    torch.testing.assert_close(other.residuals[1], torch.zeros(7))
    assert torch.equal(other.negative, head.negative)


def test_folding_leaves_one_matrix_of_texts() -> None:
    head = trained(TestTextAligned().head())
    folded = heads.optimize(head, tokens=9)
    assert set(folded.state_dict()) == {"texts", "project.weight", "patch_weight", "logit_bias"}
    assert not folded.has_patches  # their weight is 0: only maps need them
    x = torch.randn(2, CHANNELS, 3, 3)
    torch.testing.assert_close(folded.details(x).label_attention, head.details(x).label_attention)
    assert heads.optimize(TestOnAClassToken().head(), tokens=9).has_patches


def test_a_frozen_projection_leaves_only_prompts_to_train() -> None:
    head = TestOnAnAttentionPool().head(train_projection=False)
    trainable = {name for name, parameter in head.named_parameters() if parameter.requires_grad}
    assert trainable == {"residuals", "negative", "patch_weight", "logit_scale", "logit_bias"}


def test_words_of_another_length_need_a_projection() -> None:
    with pytest.raises(LabelwiseError, match=rf"must have the map's {CHANNELS} numbers, not 7"):
        heads.create("text-aligned", in_features=CHANNELS, labels=LABELS, word_vectors=WORDS, project=False)
