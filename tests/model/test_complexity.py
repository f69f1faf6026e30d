"""Counts against the papers' tables and against sums done by hand."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import labelwise as lw
from labelwise.model.complexity import Complexity, measure_complexity


@cache
def counted(backbone: str, head: str, size: int, labels: int, options: tuple[tuple[str, Any], ...] = ()) -> Complexity:
    return measure_complexity(lw.create_model(backbone, head, labels, weights="none", size=size, **dict(options)))


@pytest.mark.parametrize(
    ("head", "options", "printed"),
    [("q2l", (), 14.8e6), ("hsq", (("shared_experts", 1),), 14.3e6), ("hsq", (("shared_experts", 16),), 15.5e6)],
)
def test_hsq_appendix_a2_parameters(head: str, options: tuple[tuple[str, Any], ...], printed: float) -> None:
    assert counted("resnet10t", head, 576, 80, options).total("parameters") == pytest.approx(printed, rel=0.01)


def test_hsq_appendix_a2_step_from_1_to_16_shared_experts() -> None:
    few, many = (counted("resnet10t", "hsq", 576, 80, (("shared_experts", n),)) for n in (1, 16))
    assert round((many.total("parameters") - few.total("parameters")) / 1e6, 1) == 1.2


@pytest.mark.parametrize(("shared", "printed"), [(1, 8.6), (16, 8.7)])
def test_hsq_appendix_a2_flops_are_multiply_adds_without_attentions_products(shared: int, printed: float) -> None:
    counts = counted("resnet10t", "hsq", 576, 80, (("shared_experts", shared),))
    assert round(counts.total("macs_without_attention") / 1e9, 1) == printed


@pytest.mark.parametrize(
    ("head", "labels", "groups", "printed"),
    [
        ("gap", 100, None, 5.7),  # table 9
        ("gap", 1000, None, 5.7),
        ("gap", 5000, None, 5.8),
        ("gap", 9600, None, 5.8),  # table 2
        ("ml-decoder", 100, 100, 6.3),
        ("ml-decoder", 1000, 100, 6.3),
        ("ml-decoder", 5000, 100, 6.4),
        ("ml-decoder", 9600, 100, 6.3),
        ("ml-decoder", 9600, 200, 6.7),
        ("ml-decoder", 9600, 400, 7.6),
    ],
)
def test_ml_decoder_tables_2_and_9(head: str, labels: int, groups: int | None, printed: float) -> None:
    options = (("groups", groups),) if groups else ()
    assert counted("tresnet_m", head, 224, labels, options).total("macs") / 1e9 == pytest.approx(printed, rel=0.03)


def test_parts_by_hand() -> None:
    """ML-Decoder, 7x7 tokens of 512 channels, D=64, ff=2048, K=5, N=20."""
    counts = counted("resnet10t", "ml-decoder", 224, 20, (("dim", 64), ("groups", 5)))
    d, t, k, ff = 64, 49, 5, 2048
    assert counts.parts["tokens"].macs == t * 512 * d
    attention = 2 * k * t * d
    assert counts.parts["decoder"].macs == k * d * d + t * d * 2 * d + attention + k * d * d + 2 * k * d * ff
    assert counts.parts["decoder"].macs_without_attention == counts.parts["decoder"].macs - attention
    assert counts.parts["classifier"].macs == 20 * d
    assert counts.parts["classifier"].parameters == 20 * d + 20


def test_a_head_without_parts_counts_as_one() -> None:
    counts = counted("resnet10t", "csra", 224, 20, ())
    assert set(counts.parts) == {"backbone", "head"}
    assert counts.parts["head"].parameters == 20 * 512
    assert counts.parts["head"].macs == 49 * 20 * 512


@pytest.mark.parametrize("head", ["gap", "csra", "transformer-decoder", "q2l", "ml-decoder", "hsq", "hsq-linear"])
def test_the_parts_of_a_head_are_the_whole(head: str) -> None:
    model = lw.create_model("resnet10t", head, 4, weights="none")
    assert measure_complexity(model).total("parameters") == sum(p.numel() for p in model.parameters())


def test_counting_leaves_the_model_alone() -> None:
    model = lw.create_model("resnet10t", "hsq", 4, weights="none", dim=16)
    before = {name: (p.device, p.requires_grad) for name, p in model.named_parameters()}
    counts = measure_complexity(model)
    assert {name: (p.device, p.requires_grad) for name, p in model.named_parameters()} == before
    assert counts.total("parameters") == sum(p.numel() for p in model.parameters())
    to_dict = counts.to_dict()
    assert to_dict["flops"] == 2 * to_dict["macs"]
    assert list(to_dict["parts"]) == ["backbone", "tokens", "queries", "decoder", "experts", "classifier"]
