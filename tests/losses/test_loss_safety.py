"""Losses stay finite where half precision and extreme logits break the usual code, and unknowns have no say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise import losses

# What these do with unknown entries is their point: test_csl.py, test_partial.py.
PARTIAL = ("csl", "em", "role", "gpr")
LOSSES = {name: getattr(losses, name.replace("-", "_")) for name in losses.list_losses() if name not in PARTIAL}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CASES = [(name, {}) for name in LOSSES] + [  # powers below 1 have an infinite slope at 0
    ("asymmetric", {"gamma_neg": 0.5, "gamma_pos": 0.5}),
    ("asymmetric", {"gamma_neg": 0.5, "clip": 0.0}),
    ("focal", {"gamma": 0.5}),
    ("hill", {"gamma": 0.5}),
]


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    rows, labels = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    extreme = st.sampled_from([-1e4, -100.0, -20.0, 0.0, 20.0, 100.0, 1e4]) | st.floats(-1e4, 1e4)
    target = st.sampled_from([1.0, 0.0, -1.0]) | st.floats(0, 1)
    size = rows * labels
    logits = draw(st.lists(extreme, min_size=size, max_size=size))
    targets = draw(st.lists(target, min_size=size, max_size=size))
    return torch.tensor(logits).view(rows, labels), torch.tensor(targets).view(rows, labels)


@pytest.mark.parametrize(("name", "options"), CASES)
@given(batch=batches(), dtype=st.sampled_from(DTYPES), unknown=st.sampled_from(["ignore", "negative"]))
@settings(max_examples=25, deadline=None)
def test_loss_and_gradient_are_finite_for_any_logits(name, options, batch, dtype, unknown) -> None:
    logits, targets = batch
    logits = logits.to(dtype).requires_grad_()
    loss = LOSSES[name](logits, targets, unknown=unknown, unknown_weight=0.1, **options)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert loss >= 0
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches())
@settings(max_examples=25, deadline=None)
def test_unknown_entries_get_exactly_zero_gradient_and_have_no_influence(name, batch) -> None:
    logits, targets = batch
    unknown = targets < 0
    logits.requires_grad_()
    loss = LOSSES[name](logits, targets)
    loss.backward()
    assert logits.grad is not None
    assert (logits.grad[unknown] == 0).all()
    other = logits.detach().masked_fill(unknown, float("nan"))
    assert LOSSES[name](other, targets).item() == loss.item()


def test_asymmetric_has_a_gradient_where_the_shifted_probability_is_exactly_zero() -> None:
    logits = torch.zeros(1, 1, requires_grad=True)  # p = clip = 0.5: the slope of 0^0.5 is infinite
    losses.asymmetric(logits, torch.zeros(1, 1), gamma_neg=0.5, clip=0.5).backward()
    assert logits.grad is not None
    assert logits.grad.item() == 0.0


def literal_asymmetric(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The usual way to write ASL: probabilities, a clamp at 1e-8, then logarithms."""
    p = torch.sigmoid(x)
    not_p = (1 - p + 0.05).clamp(max=1)
    log_loss = y * torch.log(p.clamp(min=1e-8)) + (1 - y) * torch.log(not_p.clamp(min=1e-8))
    return -(log_loss * (1 - p * y - not_p * (1 - y)) ** (4 * (1 - y))).sum()


def test_asymmetric_is_finite_in_half_precision_where_the_usual_formula_is_not() -> None:
    logits, targets = torch.tensor([[-20.0, 20.0]]), torch.tensor([[1.0, 0.0]])
    half = logits.half()
    assert not literal_asymmetric(half, targets.half()).isfinite()  # 1e-8 is 0 in fp16: log(0)
    ours = losses.asymmetric(half, targets, reduction="sum")
    reference = losses.asymmetric(logits.double(), targets, reduction="sum")
    torch.testing.assert_close(ours.double(), reference)
    # an easy negative meets 0 * log(0)
    assert literal_asymmetric(half[:, :1], targets[:, 1:].half()).isnan()
    assert losses.asymmetric(half[:, :1], targets[:, 1:]).item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_gives_the_loss_of_its_rounded_logits(name: str, dtype: torch.dtype) -> None:
    logits = (4 * torch.randn(8, 6, generator=torch.Generator().manual_seed(0))).to(dtype)
    targets = (torch.rand(8, 6, generator=torch.Generator().manual_seed(1)) < 0.3).long()
    exact = LOSSES[name](logits.double(), targets).float()
    torch.testing.assert_close(LOSSES[name](logits, targets), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_under_autocast(name: str) -> None:
    layer, images = torch.nn.Linear(4, 3), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, -1], [0, 0, 1]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = layer(images)
        loss = LOSSES[name](logits, targets)
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(loss, LOSSES[name](logits.float(), targets))
    loss.backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_where_nothing_is_known_is_zero_with_zero_gradient(name: str) -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    loss = LOSSES[name](logits, torch.full((2, 3), -1))
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", LOSSES)
def test_traces_into_one_graph(name: str) -> None:
    """`aot_eager` traces forward and backward as torch.compile does, without the minute a C++ compiler takes."""
    logits, targets = torch.randn(4, 3, requires_grad=True), torch.tensor([[1, 0, 0], [0, 1, -1], [1, 0, 1], [0, 0, 0]])
    module = losses.create(name, unknown="negative", unknown_weight=0.5)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    expected, ours = module(logits, targets), compiled(logits, targets)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(torch.autograd.grad(ours, logits), torch.autograd.grad(expected, logits))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_torch_compile_by_inductor() -> None:
    logits, targets = torch.randn(4, 3, requires_grad=True), torch.tensor([[1, 0, 0], [0, 1, -1], [1, 0, 1], [0, 0, 0]])
    ours = torch.compile(losses.asymmetric, fullgraph=True)(logits, targets)
    expected = losses.asymmetric(logits, targets)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(torch.autograd.grad(ours, logits), torch.autograd.grad(expected, logits))
