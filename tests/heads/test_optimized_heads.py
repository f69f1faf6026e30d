"""Optimised heads give the same answers, need no more multiply-adds, and leave the original alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim
from torch.utils.flop_counter import FlopCounterMode

from head_kit import small_options
from labelwise import heads
from labelwise.heads.base import Recorder
from labelwise.heads.folding import AbsorbedAttention, cheapest_reading
from labelwise.heads.layers import Attention

CHANNELS, LABELS = 24, 13
WORDS = torch.randn(LABELS, 10, generator=torch.Generator().manual_seed(0))
TOLERANCE = {"atol": 1e-4, "rtol": 0}


def tensors_of(name: str) -> dict[str, Any]:
    """The tensors that a head needs, and what says how to read them."""
    needed = {key: value for key, value in small_options(name).items() if isinstance(value, Tensor)}
    return needed | ({"descriptions": 2} if name == "ram-plus" else {})


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, tensors_of(name)) for name in heads.list_heads()},
    "one description": ("ram-plus", {"dim": 16, "attention_heads": 2, "descriptions": 1, "word_vectors": WORDS}),
    "few queries": ("ml-decoder", {"dim": 64, "groups": 3}),
    "few queries, in order": ("ml-decoder", {"dim": 64, "groups": 4, "group_seed": None}),
    "deep": ("ml-decoder", {"dim": 64, "groups": 2, "decoder_layers": 3}),
    "positions": ("q2l", {"dim": 128, "groups": 2}),
    "self-attention": ("transformer-decoder", {"dim": 64, "groups": 3, "decoder_layers": 2}),
    "shared stream": ("hsq", {"shared_stream": True}),
    "progressive": ("hsq", {"wiring": "progressive"}),
    "temperatures": ("csra", {"residual_heads": 4}),
    "word queries": ("ml-decoder", {"queries": "words", "classifier": "shared", "groups": None, "word_vectors": WORDS}),
    "word groups": ("ml-decoder", {"queries": "words", "classifier": "words", "groups": 4, "word_vectors": WORDS}),
    "experts from words": (
        "hsq",
        {
            "queries": "words",
            "classifier": "shared",
            "task_weights": "query",
            "gate_weights": "query",
            "word_vectors": WORDS,
        },
    ),
}


def make(variant: str) -> heads.Head:
    torch.manual_seed(1)
    name, options = VARIANTS[variant]
    head = heads.create(name, in_features=CHANNELS, labels=LABELS, **options).eval()
    for parameter in head.parameters():  # zero biases would hide a bias that is forgotten
        if parameter.dim() <= 1:
            nn.init.normal_(parameter, std=0.3)
    return head


def flops(module: nn.Module, x: Tensor) -> int:
    still = copy.deepcopy(module).requires_grad_(False)  # the counter wants to follow gradients, or none at all
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        still(x)
    return counter.get_total_flops()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_answers_with_no_more_arithmetic(variant: str) -> None:
    head, x = make(variant), torch.randn(3, CHANNELS, 7, 6)
    before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    fast = heads.optimize(head, tokens=42)
    torch.testing.assert_close(fast(x), head(x), **TOLERANCE)
    details, expected = fast.details(x), head.details(x)
    torch.testing.assert_close(details.logits, expected.logits, **TOLERANCE)
    assert len(details.attention_layers) == len(expected.attention_layers)
    for mine, theirs in zip(details.attention_layers, expected.attention_layers, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
    for mine, theirs in zip(details.gates, expected.gates, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
    assert torch.equal(details.label_query, expected.label_query)
    assert flops(fast, x) <= flops(head, x)
    assert not any(isinstance(part, nn.Dropout) for part in fast.modules())
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    after = head.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("variant", ["ml-decoder", "q2l", "transformer-decoder", "hsq"])
def test_what_depends_on_the_queries_alone_is_not_computed_again(variant: str) -> None:
    """Of two maps that differ in nothing but their number of tokens, the one without any costs no query projection."""
    head, x = make(variant), torch.randn(1, CHANNELS, 1, 1)
    queries, dim = head.groups, head.tokens.dim
    saved = flops(head, x) - flops(heads.optimize(head, tokens=1), x)
    blocks = 5 if head.config.decoder.first_block == "self-attention" else 1  # its q, k, v and output; and the query
    assert saved >= blocks * 2 * queries * dim * dim


def test_queries_from_one_description_are_computed_once() -> None:
    head, x = make("one description"), torch.randn(1, CHANNELS, 2, 2)
    words, dim = WORDS.shape[1], 16
    assert flops(head, x) - flops(heads.optimize(head, tokens=4), x) == 2 * LABELS * dim * (words + dim)


@settings(max_examples=25, deadline=None)
@given(
    queries=st.integers(1, 9),
    tokens=st.integers(1, 12),
    per_head=st.integers(1, 5),
    number=st.integers(1, 4),
    batch=st.integers(1, 3),
    values=st.booleans(),
    fixed=st.booleans(),
    positions=st.booleans(),
)
def test_absorbed_projections_change_nothing(
    queries: int, tokens: int, per_head: int, number: int, batch: int, values: bool, fixed: bool, positions: bool
) -> None:
    dim = number * per_head
    attention = Attention(dim, number, dropout=0.1).eval()
    nn.init.normal_(attention.in_proj_bias)
    memory, query = torch.randn(batch, tokens, dim), torch.randn(1 if fixed else batch, queries, dim)
    where = torch.randn(1, tokens, dim) if positions else None
    absorbed, mine, theirs = AbsorbedAttention(attention, values), Recorder(), Recorder()
    with torch.no_grad():
        q = attention.project_query(query)
        expected = attention.read(q, memory, where, theirs)
        found = absorbed.read(absorbed.absorb(q), memory, where, mine)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(mine.attention[0], theirs.attention[0], atol=1e-5, rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    queries=st.integers(1, 400), tokens=st.integers(1, 2000), per_head=st.integers(8, 256), number=st.integers(2, 16)
)
def test_the_cost_model_follows_its_reasons(queries: int, tokens: int, per_head: int, number: int) -> None:
    dim = number * per_head
    fixed, per_image = (cheapest_reading(queries, tokens, dim, number, fixed=known) for known in (True, False))
    if queries * (number - 1) >= dim:  # then W_k^T q for all heads is more than the keys themselves
        assert fixed == per_image == "project"
    if fixed == "project":
        assert per_image == "project"  # absorbing per image is never cheaper than with queries that are known
    if fixed == "absorb-both":  # with more tokens there is only more to save
        assert cheapest_reading(queries, 2 * tokens, dim, number, fixed=True) == "absorb-both"


def test_the_cost_model_decides_as_measured() -> None:
    """One core, batch 8, D=768, 8 heads: ms projecting, absorbing keys, absorbing both (benchmarks of this machine)."""
    measured = {(20, 196): (42.6, 26.8, 12.7), (80, 196): (48.0, 43.2, 49.6), (20, 49): (11.1, 6.8, 5.2)}
    measured |= {(80, 49): (13.2, 11.2, 21.5), (100, 49): (13.4, 12.4, 27.1)}
    readings = ("project", "absorb-keys", "absorb-both")
    for (queries, tokens), times in measured.items():
        chosen = times[readings.index(cheapest_reading(queries, tokens, 768, 8, fixed=True))]
        assert chosen <= 1.1 * min(times)


def test_exports_with_any_batch_and_size() -> None:
    sizes = {0: Dim("batch", max=64), 2: Dim("height", max=64), 3: Dim("width", max=64)}
    fast = heads.optimize(make("deep"), tokens=20)
    program = torch.export.export(fast, (torch.randn(2, CHANNELS, 4, 5),), dynamic_shapes=(sizes,))
    x = torch.randn(3, CHANNELS, 7, 6)
    torch.testing.assert_close(program.module()(x), fast(x), **TOLERANCE)
