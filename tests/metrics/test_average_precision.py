"""AP against scikit-learn, torchmetrics and literal formulas."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score
from torchmetrics.functional.classification import multilabel_average_precision

from labelwise.core.errors import LabelwiseError
from labelwise.metrics import average_precision, mean_average_precision, ranking


@st.composite
def evaluations(draw: st.DrawFn) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Scores with many ties (a coarse grid), also infinite ones, and targets with unknowns and empty labels."""
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 4)))
    grid = st.sampled_from([-np.inf, -2.0, -0.0, 0.0, 0.25, 0.5, 0.75, 3.0, np.inf])
    scores = draw(arrays(np.float32, shape, elements=grid))
    return scores, draw(arrays(np.int8, shape, elements=st.sampled_from([1, 0, -1])))


def literal_average_precision(scores: NDArray[np.float32], targets: NDArray[np.int8]) -> Fraction | None:
    """Sum over thresholds, highest first, of (recall step) * precision; whole numbers only."""
    known = targets >= 0
    scores, targets = scores[known], targets[known]
    positives = int((targets == 1).sum())
    if positives == 0:
        return None
    area, before = Fraction(0), 0
    for threshold in sorted(set(scores.tolist()), reverse=True):
        taken = scores >= threshold
        correct = int((taken & (targets == 1)).sum())
        area += Fraction(correct - before, positives) * Fraction(correct, int(taken.sum()))
        before = correct
    return area


def literal_eleven_points(scores: NDArray[np.float32], targets: NDArray[np.int8]) -> Fraction | None:
    """VOC 2007 devkit: for r in 0, 0.1 ... 1 the largest precision among the points with recall >= r."""
    known = targets >= 0
    scores, targets = scores[known], targets[known]
    positives = int((targets == 1).sum())
    if positives == 0:
        return None
    points = []
    for threshold in set(scores.tolist()):
        taken = scores >= threshold
        correct = int((taken & (targets == 1)).sum())
        points.append((Fraction(correct, positives), Fraction(correct, int(taken.sum()))))
    levels = [Fraction(r, 10) for r in range(11)]
    return sum((max(p for recall, p in points if recall >= level) for level in levels), Fraction(0)) / 11


@pytest.mark.parametrize(
    ("method", "literal"), [("area", literal_average_precision), ("11-point", literal_eleven_points)]
)
@given(evaluations())
@settings(max_examples=150, deadline=None)
def test_equals_the_literal_formula(method, literal, evaluation) -> None:
    scores, targets = evaluation
    for label, value in enumerate(average_precision(scores, targets, method).tolist()):
        expected = literal(scores[:, label], targets[:, label])
        assert np.isnan(value) if expected is None else value == pytest.approx(float(expected), abs=1e-12)


def random_evaluation(images: int, labels: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = (torch.rand(images, labels, generator=generator) < 0.1).long()
    scores = torch.sigmoid(torch.randn(images, labels, generator=generator) + targets)
    return scores, targets


def test_equals_scikit_learn_with_ties_and_unknowns() -> None:
    scores, targets = random_evaluation(500, 20)
    scores = (scores * 20).round() / 20  # about 25 images per distinct score
    targets[torch.rand(targets.shape, generator=torch.Generator().manual_seed(1)) < 0.3] = -1
    ours = average_precision(scores, targets)
    for label in range(20):
        known = targets[:, label] >= 0
        expected = average_precision_score(targets[known, label].numpy(), scores[known, label].numpy())
        assert ours[label].item() == pytest.approx(expected, abs=1e-12)


def test_equals_torchmetrics_where_every_label_has_a_positive() -> None:
    scores, targets = random_evaluation(2000, 30)
    assert targets.any(dim=0).all()
    expected = multilabel_average_precision(scores, targets, num_labels=30, thresholds=None, average="macro")
    assert mean_average_precision(scores, targets) == pytest.approx(expected.item(), abs=1e-6)


def test_labels_without_positives_are_left_out_where_torchmetrics_averages_zeros() -> None:
    scores, targets = random_evaluation(200, 4)
    whole = mean_average_precision(scores, targets)
    empty = torch.cat([targets, torch.zeros(200, 4, dtype=torch.long)], dim=1)
    twice = torch.cat([scores, scores], dim=1)
    assert mean_average_precision(twice, empty) == whole
    assert average_precision(twice, empty).isnan().tolist() == [False] * 4 + [True] * 4
    assert multilabel_average_precision(twice, empty, num_labels=8, thresholds=None).item() == pytest.approx(whole / 2)


@given(evaluations(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_images_and_the_scores_of_unknowns_do_not_matter(evaluation, random) -> None:
    scores, targets = evaluation
    order = list(range(len(scores)))
    random.shuffle(order)
    changed = np.where(targets < 0, np.float32(random.uniform(-9, 9)), scores)
    np.testing.assert_array_equal(average_precision(scores, targets), average_precision(changed[order], targets[order]))


@given(evaluations())
@settings(deadline=None)
def test_only_the_ranking_matters(evaluation) -> None:
    scores, targets = evaluation
    ranks = np.unique(scores, return_inverse=True)[1].reshape(scores.shape).astype(np.float64)
    np.testing.assert_array_equal(average_precision(scores, targets), average_precision(ranks**3 - 7, targets))


def test_blocks_of_labels_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, targets = random_evaluation(50, 7)
    whole = average_precision(scores, targets)
    monkeypatch.setattr(ranking, "_BLOCK_VALUES", 100)  # blocks of 2, 2, 2, 1
    assert torch.equal(average_precision(scores, targets), whole)


def test_inputs_are_left_as_they_were() -> None:
    scores, targets = random_evaluation(50, 3)
    targets[0] = -1
    before = scores.clone(), targets.clone()
    average_precision(scores.T.contiguous().T, targets)  # label-major memory: a view of it must not be sorted
    average_precision(scores, targets)
    assert torch.equal(scores, before[0])
    assert torch.equal(targets, before[1])


def test_all_kinds_of_input_agree() -> None:
    scores, targets = random_evaluation(300, 5)
    scores = scores.bfloat16()  # representable in every wider type
    expected = average_precision(scores, targets)
    for given_scores in (scores.float(), scores.double(), scores.float().numpy(), scores.float().requires_grad_()):
        assert torch.equal(average_precision(given_scores, targets), expected)
    for given_targets in (targets.bool(), targets.float(), targets.numpy().astype(np.uint8)):
        assert torch.equal(average_precision(scores, given_targets), expected)


def test_float64_scores_are_not_rounded() -> None:
    scores = np.array([[1.0], [1.0 + 1e-12]])  # equal in float32
    assert average_precision(scores, np.array([[1], [0]])).item() == 0.5
    assert average_precision(scores.astype(np.float32), np.array([[1], [0]])).item() == 0.5
    assert average_precision(scores, np.array([[0], [1]])).item() == 1.0


def test_one_image_and_nothing_known() -> None:
    assert average_precision(torch.tensor([[0.3, 0.2, 0.1]]), torch.tensor([[1, 0, -1]])).nan_to_num(-1).tolist() == [
        1.0,
        -1.0,
        -1.0,
    ]
    assert np.isnan(mean_average_precision(torch.rand(4, 2), torch.full((4, 2), -1)))


def test_a_misspelt_method_is_named() -> None:
    with pytest.raises(LabelwiseError, match="unknown average precision method '11point'; did you mean '11-point'"):
        average_precision(torch.rand(2, 2), torch.ones(2, 2), "11point")  # type: ignore[arg-type]
