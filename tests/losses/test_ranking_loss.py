"""The ranking loss against a literal loop over pairs, and what it does with unknown and soft targets."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from labelwise import losses


def literal(logits: Tensor, targets: Tensor) -> float:
    """Zhang, Gong & Shah 2016: per image the mean over pairs (present, absent), then the mean over images."""
    values = []
    for x, t in zip(logits.tolist(), targets.tolist(), strict=True):
        pairs = [
            math.log1p(math.exp(x[n] - x[p])) for p in range(len(x)) for n in range(len(x)) if t[p] == 1 and t[n] == 0
        ]
        if pairs:
            values.append(sum(pairs) / len(pairs))
    return sum(values) / len(values) if values else 0.0


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 6))
def test_it_is_the_mean_over_pairs(seed: int, images: int, labels: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(images, labels, generator=generator, dtype=torch.float64)
    targets = torch.randint(-1, 2, (images, labels), generator=generator)
    assert losses.ranking(logits, targets).item() == pytest.approx(literal(logits, targets), abs=1e-12)


def test_soft_targets_weigh_pairs() -> None:
    """t parts present: the pair (a, b) counts by t_a (1 - t_b)."""
    x = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
    t = [0.3, 1.0, 0.0]
    weights = {(p, n): t[p] * (1 - t[n]) for p in range(3) for n in range(3)}
    expected = sum(w * math.log1p(math.exp(x[0, n] - x[0, p])) for (p, n), w in weights.items()) / sum(weights.values())
    assert losses.ranking(x, torch.tensor([t], dtype=torch.float64)).item() == pytest.approx(expected)


def test_gradient_raises_the_present_and_lowers_the_absent() -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    losses.ranking(logits, torch.tensor([[1, 0, -1]])).backward()
    assert logits.grad is not None
    present, absent, unknown = logits.grad[0].tolist()
    assert present < 0 < absent
    assert unknown == 0


def test_a_target_of_almost_nothing_has_a_finite_gradient() -> None:
    logits = torch.zeros(1, 2, requires_grad=True)
    losses.ranking(logits, torch.tensor([[7e-40, 0.0]])).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
