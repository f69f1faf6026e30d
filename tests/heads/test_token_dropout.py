"""Tokens that a training step leaves out."""

from __future__ import annotations

import pytest
import torch

from labelwise import heads


@pytest.mark.parametrize("head", ["ml-decoder", "q2l", "hsq"])
def test_a_step_sees_some_tokens_with_their_own_positions(head: str) -> None:
    """With all but the kept tokens' values destroyed, nothing changes: the others were never looked at."""
    model = heads.create(head, in_features=4, labels=3, dim=16, dropout=0.0, token_dropout=0.5)
    x = torch.randn(2, 4, 4, 4, requires_grad=True)
    model.train()(x).sum().backward()
    assert x.grad is not None
    used = (x.grad.abs().sum(dim=1) > 0).flatten(1).sum(dim=1)  # [B]
    assert used.tolist() == [8, 8]

    torch.manual_seed(1)
    before = model(x)
    destroyed = torch.where(gradient_places(model, x), x, torch.nan)
    torch.manual_seed(1)
    assert torch.equal(model(destroyed), before)


def gradient_places(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(1)
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    return (gradient.abs().sum(dim=1, keepdim=True) > 0).expand_as(x)


def test_evaluation_and_maps_see_all_of_them() -> None:
    torch.manual_seed(0)
    model = heads.create("hsq", in_features=4, labels=3, dim=16, dropout=0.0, token_dropout=0.5)
    whole = heads.create("hsq", in_features=4, labels=3, dim=16, dropout=0.0)
    whole.load_state_dict(model.state_dict())
    x = torch.randn(2, 4, 4, 4)
    assert torch.equal(model.eval()(x), whole.eval()(x))
    assert model.train().details(x).attention.shape == (2, 3, 4, 4)
