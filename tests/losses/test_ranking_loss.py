"""The ranking loss against a literal loop over pairs, and what it does with unknown and soft targets."""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from labelwise import losses
from labelwise.core.errors import LabelwiseError
from labelwise.losses import modules

PENALTIES = {"logistic": lambda gap: math.log1p(math.exp(gap)), "hinge": lambda gap: max(0.0, 1 + gap)}


def literal(logits: Tensor, targets: Tensor, penalty: str, divide_by: str) -> float:
    """Per image the sum over pairs (present, absent), divided, then the mean over images."""
    values = []
    for x, t in zip(logits.tolist(), targets.tolist(), strict=True):
        pairs = [
            PENALTIES[penalty](x[n] - x[p]) for p in range(len(x)) for n in range(len(x)) if t[p] == 1 and t[n] == 0
        ]
        if pairs:
            violations = sum(pair > 0 for pair in pairs)
            divisor = {"pairs": len(pairs), "violations": max(1, violations), "present": t.count(1)}[divide_by]
            values.append(sum(pairs) / divisor)
    return sum(values) / len(values) if values else 0.0


@given(
    st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 6), st.sampled_from(sorted(PENALTIES)),
    st.sampled_from(["pairs", "violations", "present"]),
)  # fmt: skip
def test_it_is_a_sum_over_pairs(seed: int, images: int, labels: int, penalty: Any, divide_by: Any) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(images, labels, generator=generator, dtype=torch.float64)
    targets = torch.randint(-1, 2, (images, labels), generator=generator)
    found = losses.ranking(logits, targets, penalty=penalty, divide_by=divide_by).item()
    assert found == pytest.approx(literal(logits, targets, penalty, divide_by), abs=1e-12)


def test_weights_of_images() -> None:
    """The mean of weight times loss, for losses with one value per image and per entry alike."""
    logits, targets = torch.randn(3, 4), torch.tensor([[1, 0, 0, -1], [0, 1, 1, 0], [1, 1, 0, 0]])
    weights = torch.tensor([1.0, 2.0, 0.5])
    for name in ("ranking", "bce"):
        loss = losses.create(name)
        each = losses.create(name, reduction="none")(logits, targets).reshape(3, -1)
        torch.testing.assert_close(loss.weighted(logits, targets, weights), (each.T * weights).mean())
        assert torch.equal(loss.weighted(logits, targets, None), loss(logits, targets))


def test_a_loss_without_a_reduction_cannot_weigh_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelwise.losses.modules._LOSSES", copy(modules._LOSSES))  # forget it after the test

    class Plain(losses.Loss, name="plain-sum", function=lambda logits, targets: (logits - targets).sum()):
        pass

    with pytest.raises(LabelwiseError, match="which the loss 'plain-sum' cannot"):
        Plain().weighted(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1))


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
