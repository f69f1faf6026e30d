"""RAM++'s head: the kit that all heads pass. What it computes is compared in tests/model/test_checkpoints.py."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch.nn import functional as F

from head_kit import CHANNELS, LABELS, HeadKit
from labelwise import heads
from labelwise.core.errors import LabelwiseError

SMALL: dict[str, Any] = {"dim": 16, "attention_heads": 2, "feedforward": 20}
# Descriptions have length 1, as CLIP's text embeddings do.
WORDS = F.normalize(torch.randn(LABELS, 3, 10, generator=torch.Generator().manual_seed(3)), dim=2).flatten(1)


class TestRamPlus(HeadKit):
    name = "ram-plus"
    options: ClassVar[dict[str, Any]] = {**SMALL, "descriptions": 3, "word_vectors": WORDS}


class TestRam(HeadKit):
    name = "ram-plus"
    options: ClassVar[dict[str, Any]] = {**SMALL, "descriptions": 1, "decoder_layers": 1, "word_vectors": WORDS[:, :10]}


def test_equal_descriptions_are_one() -> None:
    """So that a tag with a single text has it as all of its descriptions."""
    one = TestRam().head()
    several = heads.create(
        **{"name": "ram-plus", "in_features": CHANNELS, "labels": LABELS, "descriptions": 3},
        **{**SMALL, "decoder_layers": 1, "word_vectors": WORDS[:, :10].repeat(1, 3)},
    ).eval()
    several.load_state_dict(
        {**several.state_dict(), **{k: v for k, v in one.state_dict().items() if k != "word_vectors"}}
    )
    x = torch.randn(2, CHANNELS, 3, 4)
    torch.testing.assert_close(several(x), one(x), atol=1e-5, rtol=1e-4)


def test_descriptions_must_fill_the_word_vectors() -> None:
    with pytest.raises(LabelwiseError, match="of length 30 do not hold 4 descriptions"):
        heads.create("ram-plus", in_features=CHANNELS, labels=LABELS, word_vectors=WORDS, **SMALL, descriptions=4)
