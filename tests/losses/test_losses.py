"""Every loss against torch, torchvision or a literal loop over entries; gradients against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from timm.loss import BinaryCrossEntropy
from torchvision.ops import sigmoid_focal_loss

from labelwise import losses
from labelwise.core.errors import LabelwiseError

# What these do with unknown entries is their point: test_csl.py, test_partial.py.
PARTIAL = ("csl", "em", "role", "gpr")
LOSSES = {name: getattr(losses, name.replace("-", "_")) for name in losses.list_losses() if name not in PARTIAL}
ENTRYWISE = ["bce", "focal", "asymmetric", "hill", "splc"]


def example(batch: int = 6, labels: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, labels, generator=generator, dtype=torch.float64)
    return logits, (torch.rand(batch, labels, generator=generator) < 0.3).long()


# The formulas of the papers for one entry with logit x: (loss of a positive, loss of a negative).


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def literal_asymmetric(x: float, gamma_neg: float, gamma_pos: float, clip: float) -> tuple[float, float]:
    p = sigma(x)
    p_m = max(p - clip, 0)
    return -((1 - p) ** gamma_pos) * math.log(p), -(p_m**gamma_neg) * math.log(1 - p_m)


def literal_focal_margin(x: float, margin: float, gamma: float) -> float:
    p = sigma(x - margin)
    return -((1 - p) ** gamma) * math.log(p)


def literal_hill(x: float) -> tuple[float, float]:
    return literal_focal_margin(x, 1.0, 2.0), (1.5 - sigma(x)) * sigma(x) ** 2


def literal_splc(x: float, corrected: bool) -> tuple[float, float]:
    p = sigma(x)
    negative = -(p**2) * math.log(1 - p)
    if corrected and p > 0.6:
        negative = literal_focal_margin(x, 0.0, 2.0)
    return literal_focal_margin(x, 1.0, 2.0), negative


def loop(pair, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """t parts positive, 1 - t parts negative, entry by entry."""
    rows = []
    for row_x, row_t in zip(logits.tolist(), targets.tolist(), strict=True):
        pairs = [pair(x) for x in row_x]
        rows.append([t * pos + (1 - t) * neg for (pos, neg), t in zip(pairs, row_t, strict=True)])
    return torch.tensor(rows, dtype=torch.float64)


SOFT = torch.rand(6, 5, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


@pytest.mark.parametrize("targets", [example()[1], SOFT], ids=["hard", "soft"])
@pytest.mark.parametrize(
    ("name", "options", "pair"),
    [
        ("asymmetric", {}, lambda x: literal_asymmetric(x, 4, 0, 0.05)),
        (
            "asymmetric",
            {"gamma_neg": 0.5, "gamma_pos": 1.5, "clip": 0.3},
            lambda x: literal_asymmetric(x, 0.5, 1.5, 0.3),
        ),
        ("asymmetric", {"gamma_neg": 2.0, "clip": 0.0}, lambda x: literal_asymmetric(x, 2, 0, 0)),
        ("hill", {}, literal_hill),
        ("splc", {"epoch": 0}, lambda x: literal_splc(x, False)),
        ("splc", {"epoch": 1}, lambda x: literal_splc(x, True)),
    ],
)
def test_equals_a_loop_over_the_papers_formula(name, options, pair, targets) -> None:
    logits, _ = example()
    expected = loop(pair, logits, targets)
    torch.testing.assert_close(LOSSES[name](logits, targets, reduction="none", **options), expected)
    torch.testing.assert_close(LOSSES[name](logits, targets, reduction="sum", **options), expected.sum())
    torch.testing.assert_close(LOSSES[name](logits, targets, reduction="batch", **options), expected.sum() / 6)
    torch.testing.assert_close(LOSSES[name](logits, targets, **options), expected.mean())


def literal_two_way(logits: torch.Tensor, targets: torch.Tensor, t_pos: float, t_neg: float) -> float:
    def one_way(x: list[list[float]], y: list[list[float]]) -> float:
        values = []
        for row_x, row_y in zip(x, y, strict=True):
            positives = sum(math.exp(-a / t_pos) for a, b in zip(row_x, row_y, strict=True) if b == 1)
            negatives = sum(math.exp(a / t_neg) for a, b in zip(row_x, row_y, strict=True) if b == 0)
            if positives:  # softplus(log n^Tn + log p^Tp) = log(1 + n^Tn p^Tp)
                values.append(math.log(1 + negatives**t_neg * positives**t_pos))
        return sum(values) / len(values)

    return one_way(logits.tolist(), targets.tolist()) + one_way(logits.T.tolist(), targets.T.tolist())


@pytest.mark.parametrize(("t_pos", "t_neg"), [(4.0, 1.0), (1.0, 1.0), (2.0, 0.5)])
def test_two_way_equals_a_loop(t_pos: float, t_neg: float) -> None:
    logits, targets = example()
    targets[0], targets[:, 1] = 0, 0  # an image and a label without a positive are left out
    targets[2, 3] = -1  # unknown entries stand in no sum
    ours = losses.two_way(logits, targets, temperature_pos=t_pos, temperature_neg=t_neg)
    assert ours.item() == pytest.approx(literal_two_way(logits, targets, t_pos, t_neg), rel=1e-9)


def test_two_way_sums_and_has_no_value_per_entry() -> None:
    logits, targets = torch.zeros(2, 3), torch.tensor([[1, 0, 0], [0, 1, 0]])
    by_image = F.softplus(torch.tensor(2.0).log()) * 2  # two negatives at logit 0 against one positive
    by_label = F.softplus(torch.tensor(0.0)) * 2  # one against one; the third label has no positive
    torch.testing.assert_close(losses.two_way(logits, targets, reduction="sum"), by_image + by_label)
    torch.testing.assert_close(losses.two_way(logits, targets, reduction="batch"), (by_image + by_label) / 2)
    with pytest.raises(LabelwiseError, match="no value per entry"):
        losses.two_way(logits, targets, reduction="none")


@pytest.mark.parametrize("targets", [example()[1], SOFT], ids=["hard", "soft"])
def test_bce_equals_torch(targets: torch.Tensor) -> None:
    logits, _ = example()
    expected = F.binary_cross_entropy_with_logits(logits, targets.double())
    torch.testing.assert_close(losses.bce(logits, targets), expected)
    # the family meets where it should: no focusing and no shift is BCE
    torch.testing.assert_close(losses.asymmetric(logits, targets, gamma_neg=0, clip=0), expected)
    torch.testing.assert_close(losses.focal(logits, targets, gamma=0), expected)


@pytest.mark.parametrize("alpha", [None, 0.25])
def test_focal_equals_torchvision(alpha: float | None) -> None:
    logits, targets = example()
    expected = sigmoid_focal_loss(logits, targets.double(), -1 if alpha is None else alpha, 2.0, reduction="mean")
    torch.testing.assert_close(losses.focal(logits, targets, alpha=alpha), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothed_bce_equals_timms(smoothing: float) -> None:
    logits, numbers = torch.randn(6, 9), torch.randint(9, (6,))
    ours = losses.bce(logits, F.one_hot(numbers, 9), label_smoothing=smoothing)
    torch.testing.assert_close(ours, BinaryCrossEntropy(smoothing)(logits, numbers))
    mixed = 0.7 * F.one_hot(numbers, 9) + 0.3 * F.one_hot(numbers.roll(1), 9)
    ours = losses.bce(logits, mixed, target_threshold=0.2)
    torch.testing.assert_close(ours, BinaryCrossEntropy(target_threshold=0.2)(logits, mixed))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_cross_entropy_equals_torch(smoothing: float) -> None:
    logits, _ = example()
    numbers = torch.tensor([0, 4, 2, 2, 1, 3])
    expected = F.cross_entropy(logits, numbers, label_smoothing=smoothing, reduction="none")
    for targets in (numbers, F.one_hot(numbers, 5), F.one_hot(numbers, 5).double()):
        ours = losses.softmax_cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none")
        torch.testing.assert_close(ours, expected)
    soft = SOFT / SOFT.sum(dim=1, keepdim=True)
    torch.testing.assert_close(
        losses.softmax_cross_entropy(logits, soft, label_smoothing=smoothing),
        F.cross_entropy(logits, soft, label_smoothing=smoothing),
    )


def test_softmax_cross_entropy_of_several_none_and_unknown_labels() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]] * 4)
    log_p = F.log_softmax(logits[0], dim=0)
    targets = torch.tensor([[1, 1, 0], [0, 0, 0], [-1, 1, 0], [-1, -1, -1]])
    ours = losses.softmax_cross_entropy(logits, targets, reduction="none")
    among_two = F.log_softmax(logits[0, 1:], dim=0)[0]  # the unknown label is not in the running
    torch.testing.assert_close(ours, torch.stack([-(log_p[0] + log_p[1]) / 2, log_p[0] * 0, -among_two, log_p[0] * 0]))
    torch.testing.assert_close(losses.softmax_cross_entropy(logits, targets), ours.sum() / 2)  # two images count
    numbers = torch.tensor([0, -1, -1, 2])
    torch.testing.assert_close(losses.softmax_cross_entropy(logits, numbers), -(log_p[0] + log_p[2]) / 2)


@pytest.mark.parametrize("name", LOSSES)
def test_unknown_as_negative_goes_from_ignored_to_negative_by_its_weight(name: str) -> None:
    logits, targets = example()
    targets[1, 2] = targets[4, 0] = -1
    function = LOSSES[name]
    as_negative = function(logits, targets.clamp(min=0))
    ignored = function(logits, targets)
    torch.testing.assert_close(function(logits, targets, unknown="negative"), as_negative)
    torch.testing.assert_close(function(logits, targets, unknown="negative", unknown_weight=0.0), ignored)
    half = function(logits, targets, unknown="negative", unknown_weight=0.5)
    assert min(ignored, as_negative) < half < max(ignored, as_negative)


@pytest.mark.parametrize("name", ENTRYWISE)
def test_mean_is_the_weighted_mean_of_what_counts(name: str) -> None:
    logits, targets = example()
    targets[1, 2] = targets[4, 0] = -1
    each = LOSSES[name](logits, targets.clamp(min=0), reduction="none")
    known = targets >= 0
    torch.testing.assert_close(LOSSES[name](logits, targets), each[known].mean())
    weighted = LOSSES[name](logits, targets, unknown="negative", unknown_weight=0.1)
    expected = (each[known].sum() + 0.1 * each[~known].sum()) / (known.sum() + 0.1 * (~known).sum())
    torch.testing.assert_close(weighted, expected)


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_finite_differences(name: str, soft: bool) -> None:
    logits, targets = example()
    assert (logits.sigmoid() - 0.6).abs().min() > 1e-3  # away from the jumps of SPLC and the kink of ASL
    assert (logits.sigmoid() - 0.05).abs().min() > 1e-3
    assert torch.autograd.gradcheck(lambda x: LOSSES[name](x, SOFT if soft else targets), logits.requires_grad_())


def test_detached_weight_changes_the_gradient_but_not_the_loss() -> None:
    logits, targets = example()
    logits.requires_grad_()
    full = losses.asymmetric(logits, targets)
    detached = losses.asymmetric(logits, targets, detach_weight=True)
    assert full.item() == detached.item()
    ours = torch.autograd.grad(detached, logits)[0]
    p = logits.detach().sigmoid()
    p_m = (p - 0.05).clamp(min=0)
    # d(-log p) = -(1 - p) and d(-log(1 - p_m)) = p (1 - p) / (1 - p_m), times the constant weights 1 and p_m^4
    expected = torch.where(targets == 1, -(1 - p), p_m**4 * p * (1 - p) / (1 - p_m)) / logits.numel()
    torch.testing.assert_close(ours, expected)
    assert not torch.allclose(ours, torch.autograd.grad(full, logits)[0])


def test_wrong_shapes_and_names_are_refused() -> None:
    with pytest.raises(LabelwiseError, match=r"logits \(2, 3\) and targets \(2, 4\) must both be \[batch, labels\]"):
        losses.bce(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(LabelwiseError, match="unknown reduction 'men'; did you mean 'mean'"):
        losses.two_way(torch.zeros(2, 3), torch.zeros(2, 3), reduction="men")  # type: ignore[arg-type]
    with pytest.raises(LabelwiseError, match="unknown treatment of unknown entries 'ignored'; did you mean 'ignore'"):
        losses.bce(torch.zeros(2, 3), torch.zeros(2, 3), unknown="ignored")  # type: ignore[arg-type]
