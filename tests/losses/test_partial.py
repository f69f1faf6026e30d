"""EM, ROLE and GPR against literal loops of their papers, and what they remember of each image."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise import losses
from labelwise.losses.partial import adam_step, pseudo_negatives
from tests.oracles.partial import literal_em, literal_gpr, literal_pseudo_negatives, literal_role

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(6, 7, generator=GENERATOR, dtype=torch.float64)
ESTIMATES = 2 * torch.randn(6, 7, generator=GENERATOR, dtype=torch.float64)
TARGETS = torch.randint(-1, 2, (6, 7), generator=GENERATOR)
SOFT = torch.where(TARGETS == 1, torch.rand(6, 7, generator=GENERATOR, dtype=torch.float64), TARGETS.double())
PSEUDO = torch.where(torch.rand(6, 7, generator=GENERATOR) < 0.5, torch.rand(6, 7, generator=GENERATOR), -1.0).double()
NAMES = ["em", "role", "gpr"]


@pytest.mark.parametrize("targets", [TARGETS, SOFT], ids=["hard", "soft"])
@pytest.mark.parametrize("pseudo", [None, PSEUDO], ids=["entropy", "and pseudo-labels"])
def test_em_equals_a_loop(targets: torch.Tensor, pseudo: torch.Tensor | None) -> None:
    ours = losses.em(LOGITS, targets, alpha=0.3, beta=0.7, pseudo_labels=pseudo)
    listed = None if pseudo is None else pseudo.tolist()
    assert ours.item() == pytest.approx(literal_em(LOGITS.tolist(), targets.tolist(), listed, 0.3, 0.7), rel=1e-9)


@pytest.mark.parametrize("targets", [TARGETS, SOFT], ids=["hard", "soft"])
def test_role_equals_a_loop_and_each_half_learns_from_its_own(targets: torch.Tensor) -> None:
    x, y = LOGITS.clone().requires_grad_(), ESTIMATES.clone().requires_grad_()
    ours = losses.role(x, targets, estimates=y, expected_positives=2.5)
    model, labels = literal_role(LOGITS.tolist(), targets.tolist(), ESTIMATES.tolist(), 2.5)
    assert ours.item() == pytest.approx((model + labels) / 2, rel=1e-9)
    ours.backward()
    step = 1e-6
    for number, (of, gradient) in enumerate(((LOGITS, x.grad), (ESTIMATES, y.grad))):  # by finite differences
        assert gradient is not None
        for i, c in ((0, 0), (3, 5), (5, 2)):
            values = []
            for sign in (1, -1):
                moved = of.clone()
                moved[i, c] += sign * step
                pair = (moved, ESTIMATES) if number == 0 else (LOGITS, moved)
                values.append(literal_role(pair[0].tolist(), targets.tolist(), pair[1].tolist(), 2.5)[number] / 2)
            assert gradient[i, c].item() == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("targets", [TARGETS, SOFT], ids=["hard", "with pseudo-labels"])
@pytest.mark.parametrize("epoch", [0, 3, 9])
def test_gpr_equals_a_loop(targets: torch.Tensor, epoch: int) -> None:
    ours = losses.gpr(LOGITS, targets, k_last=(10.0, -8.0), regularisation=0.5, epoch=epoch, epochs=10)
    rise, later = epoch / 10, (epoch + 1) / 10
    expected = literal_gpr(
        LOGITS.tolist(),
        targets.tolist(),
        w=10 * rise,
        b=-2 - 6 * rise,
        mu=0.5 + 0.3 * later,
        sigma_v=2 - 1.5 * later,
        q=(0.01, 1.0),
        pseudo_weights=(0.3, 0.8),
        expected=1.5,
        regularisation=0.5,
    )
    assert ours.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("name", "options"), [("em", {}), ("em", {"pseudo_labels": PSEUDO}), ("role", {})])
def test_gradients_equal_finite_differences(name: str, options: dict[str, Any]) -> None:
    """Those of ROLE's halves and of GPR, whose weights are constants, are checked apart."""
    function = getattr(losses, name)
    assert torch.autograd.gradcheck(lambda x: function(x, TARGETS, **options), LOGITS.clone().requires_grad_())


def test_gprs_weights_are_constants_of_its_gradient() -> None:
    x = LOGITS.clone().requires_grad_()
    losses.gpr(x, torch.full_like(TARGETS, -1), regularisation=0.0, reduction="sum").backward()
    p = LOGITS.sigmoid()
    k, v = torch.sigmoid(2 * p - 2), torch.exp(-0.5 * ((p - 0.8) / 0.5) ** 2)
    # d(1 - p^q) / q = -p^q (1 - p) and d(1 - (1 - p)) = p (1 - p)
    torch.testing.assert_close(x.grad, v * (-k * p**0.01 * (1 - p) + (1 - k) * p * (1 - p)))


def test_without_unknown_labels_all_of_them_start_from_cross_entropy() -> None:
    known = TARGETS.clamp(min=0)
    bce = losses.bce(LOGITS, known)
    torch.testing.assert_close(losses.em(LOGITS, known), bce)
    torch.testing.assert_close(losses.gpr(LOGITS, known, regularisation=0.0), bce)
    expected = LOGITS.sigmoid().sum(dim=1).mean().item()  # as many positives as the model sees: nothing to regularise
    torch.testing.assert_close(losses.role(LOGITS, known, expected_positives=expected), bce)


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    rows, labels = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    logit = st.sampled_from([-1e4, -100.0, 0.0, 100.0, 1e4]) | st.floats(-1e4, 1e4)
    target = st.sampled_from([1.0, 0.0, -1.0]) | st.floats(0, 1)
    size = rows * labels
    logits = draw(st.lists(logit, min_size=size, max_size=size))
    targets = draw(st.lists(target, min_size=size, max_size=size))
    return torch.tensor(logits).view(rows, labels), torch.tensor(targets).view(rows, labels)


@pytest.mark.parametrize("name", NAMES)
@given(batch=batches(), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
@settings(max_examples=25, deadline=None)
def test_loss_and_gradient_are_finite_for_any_logits(name: str, batch: Any, dtype: torch.dtype) -> None:
    logits, targets = batch
    loss = losses.create(name)
    loss.start(images=len(logits), labels=logits.shape[1], epochs=2)
    x = logits.to(dtype).requires_grad_()
    for epoch in (0, 1):
        loss.set_epoch(epoch)
        value = loss(x, targets, torch.arange(len(logits)))
        value.backward()
        assert value.dtype == torch.float32
        assert value.isfinite()
        assert x.grad is not None
        assert x.grad.isfinite().all()
    assert all(tensor.isfinite().all() for name, tensor in loss.state_dict().items() if name != "scores")


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", NAMES)
def test_traces_into_one_graph(name: str) -> None:
    module = losses.create(name)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(LOGITS, TARGETS), module(LOGITS, TARGETS))


@given(data=st.data(), share=st.floats(0, 1), rounds=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_pseudo_labels_equal_a_loop_and_end_at_the_share(data: st.DataObject, share: float, rounds: int) -> None:
    images, labels = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    scores = torch.rand(images, labels, generator=generator)
    scores[torch.rand(images, labels, generator=generator) < 0.3] = torch.nan
    pseudo = torch.full((images, labels), -1.0)
    for _ in range(rounds):
        expected = literal_pseudo_negatives(scores.tolist(), pseudo.tolist(), share, rounds)
        pseudo = pseudo_negatives(scores, pseudo, rounds, negative_share=share)
        torch.testing.assert_close(pseudo, torch.tensor(expected))
    chosen = pseudo >= 0
    assert not (chosen & scores.isnan()).any()
    assert (chosen.sum(0) <= share * (~scores.isnan()).sum(0) + 1e-5).all()
    for c in range(labels):  # only the lowest scores
        others = scores[~chosen[:, c] & ~scores[:, c].isnan(), c]
        assert not chosen[:, c].any() or not len(others) or pseudo[:, c].max() <= others.min()


def test_em_chooses_pseudo_labels_after_its_warm_up_and_never_among_known_labels() -> None:
    loss = losses.EM(warmup_epochs=2, negative_share=1.0, alpha=0.2, beta=0.5)
    loss.start(images=6, labels=7, epochs=4)
    rows = torch.randperm(6, generator=torch.Generator().manual_seed(3))
    counts = []
    for epoch in range(4):
        loss.set_epoch(epoch)
        loss.set_epoch(epoch)  # as when it resumes: no second round
        counts.append(int((loss.pseudo_labels >= 0).sum()))
        value = loss(LOGITS, TARGETS, rows)
        expected = losses.em(LOGITS, TARGETS, alpha=0.2, beta=0.5, pseudo_labels=loss.pseudo_labels[rows])
        torch.testing.assert_close(value, expected)
    assert counts[:2] == [0, 0]
    assert 0 < counts[2] < counts[3]
    assert (loss.pseudo_labels[rows][TARGETS >= 0] < 0).all()
    chosen = loss.pseudo_labels[rows] >= 0
    torch.testing.assert_close(loss.pseudo_labels[rows][chosen], LOGITS.sigmoid().float()[chosen])


def test_adam_is_torchs() -> None:
    ours, first, second = LOGITS.clone(), torch.zeros_like(LOGITS), torch.zeros_like(LOGITS)
    theirs = torch.nn.Parameter(LOGITS.clone())
    optimizer = torch.optim.Adam([theirs], lr=0.03)
    for step in range(1, 5):
        gradient = (ours * step).sin()
        theirs.grad = gradient.clone()
        optimizer.step()
        adam_step(ours, gradient, first, second, step, estimate_lr=0.03)
        torch.testing.assert_close(ours, theirs.data)


def test_role_learns_the_labels_of_each_image_as_one_joint_optimisation_would() -> None:
    """The authors' way: the estimates of all images are parameters of one Adam, beside the model's."""
    torch.manual_seed(0)
    loss = losses.ROLE(expected_positives=2.0, estimate_lr=0.05)
    loss.start(images=4, labels=7, epochs=1)
    targets = TARGETS[:4]
    joint = torch.where(targets >= 0, torch.logit(targets.float().clamp(0.005, 0.995)), loss.estimates)
    joint = torch.nn.Parameter(joint)
    optimizer = torch.optim.Adam([joint], lr=0.05)
    # Momentum moves images of earlier batches only: before its first batch an image has none.
    for rows in (torch.tensor([0, 1, 2, 3]), torch.tensor([2, 0]), torch.tensor([3, 1]), torch.tensor([2, 3])):
        logits = LOGITS[rows].float()
        value = loss(logits, targets[rows], rows)
        expected = losses.role(logits, targets[rows], estimates=joint[rows], expected_positives=2.0)
        torch.testing.assert_close(value, expected.detach())
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss.estimates, joint.data)
    before = loss.estimates.clone()
    loss.eval()(LOGITS[:2].float(), targets[:2], torch.tensor([0, 1]))
    assert torch.equal(loss.estimates, before)


def test_estimates_and_model_agree_in_the_end() -> None:
    """One known positive per image, two labels that always come together: the estimates learn the other one."""
    truth = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]]).repeat(8, 1)
    targets = torch.full_like(truth, -1)
    targets[torch.arange(16), truth.argmax(dim=1)] = 1
    targets[8:] = torch.full((8, 4), -1)
    targets[torch.arange(8, 16), 3 - truth[8:].flip(1).argmax(dim=1)] = 1  # the other one of the two
    torch.manual_seed(0)
    loss = losses.ROLE(expected_positives=2.0, estimate_lr=0.1)
    loss.start(images=16, labels=4, epochs=1)
    model = torch.nn.Linear(2, 4)
    images = torch.stack([truth[:, 0], truth[:, 2]], dim=1).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        loss(model(images), targets, torch.arange(16)).backward()
        optimizer.step()
    assert ((loss.estimates > 0) == truth.bool()).all()
