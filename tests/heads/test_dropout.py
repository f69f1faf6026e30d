"""Our dropout against what dropout is."""

from __future__ import annotations

import pytest
import torch

from labelwise.heads.layers import Dropout, dropout, softmax


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_scale_and_independence(p: float) -> None:
    out = dropout(torch.ones(401, 503), p)  # no multiple of four
    zeros = (out == 0).double()
    assert float(zeros.mean()) == pytest.approx(p, abs=0.005)
    assert out.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
    # Four masks come from one draw: neighbours at every distance up to eight must not know of each other.
    for distance in range(1, 9):
        together = float((zeros.flatten()[:-distance] * zeros.flatten()[distance:]).mean())
        assert together == pytest.approx(p * p, abs=0.006)


def test_gradient_follows_the_mask_and_the_seed_decides() -> None:
    x = torch.randn(64, 33, requires_grad=True)
    torch.manual_seed(3)
    out = dropout(x, 0.3)
    out.sum().backward()
    torch.testing.assert_close(out.detach(), x.detach() * x.grad)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.3), out)
    assert not torch.equal(dropout(x, 0.3), out)


def test_module() -> None:
    x = torch.randn(5, 7, dtype=torch.bfloat16)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x
    assert Dropout(0.5).train()(x).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_softmax_is_torchs_in_the_precision_of_its_input(dtype: torch.dtype) -> None:
    x = torch.randn(4, 24, dtype=dtype)
    torch.testing.assert_close(softmax(x), x.double().softmax(dim=-1).to(dtype))
