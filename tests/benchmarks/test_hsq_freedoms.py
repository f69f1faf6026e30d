"""benchmarks/hsq_freedoms.py changes what the gates of HSQ say, from outside: it must do what it claims to measure."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from labelwise import heads

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def freedoms(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("hsq_freedoms")


@pytest.fixture
def head() -> nn.Module:
    torch.manual_seed(0)
    return heads.create("hsq", in_features=8, labels=3, dim=8, attention_heads=2, widths=(4,), shared_experts=3)


def test_temperature_reaches_the_gates_and_goes_with_the_context(freedoms: Any, head: nn.Module) -> None:
    head.eval()
    x = torch.randn(2, 8, 2, 2)
    plain = head.details(x).gates[0]  # type: ignore[operator]
    with freedoms.changed_gates(freedoms.temperature(2.0)):
        softer = head.details(x).gates[0]  # type: ignore[operator]
    torch.testing.assert_close(softer, plain.sqrt() / plain.sqrt().sum(-1, keepdim=True))


def test_dropout_takes_experts_away_in_training_only(freedoms: Any) -> None:
    change = freedoms.expert_dropout(0.5)
    logits = torch.randn(20, 50, 4)
    assert torch.equal(change(logits, False), logits)
    weights = change(logits, True).softmax(-1)
    assert weights.isfinite().all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(20, 50))
    # Half of all, but for the one row in sixteen that would have lost all four and keeps them.
    assert (weights == 0).float().mean().item() == pytest.approx(0.5 - 1 / 16, abs=0.03)


def test_balance_adds_the_gradient_of_its_loss_and_changes_no_output(freedoms: Any) -> None:
    logits = torch.randn(3, 5, 4, requires_grad=True)
    weigh = torch.randn(3, 5, 4)

    def gradient(loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, logits)[0]

    changed = freedoms.balance(0.7)(logits, True)
    assert torch.equal(changed, logits)
    use = logits.softmax(-1).mean(dim=(0, 1))
    variation = use.var(unbiased=False) / use.mean() ** 2
    expected = gradient((logits * weigh).sum() + 0.7 * variation)
    torch.testing.assert_close(gradient((changed * weigh).sum()), expected)
