"""CP ... OF1, top-k, F1@k and accuracy against literal formulas and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_fscore_support, top_k_accuracy_score

from labelwise.metrics import (
    PrecisionRecall,
    f1_at_k,
    precision_recall,
    top_k_accuracy,
    top_k_precision_recall,
)

SIX = ("CP", "CR", "CF1", "OP", "OR", "OF1")


@st.composite
def evaluations(draw: st.DrawFn) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    shape = draw(st.tuples(st.integers(1, 8), st.integers(1, 6)))
    scores = draw(arrays(np.float32, shape, elements=st.sampled_from([-np.inf, 0.0, 0.25, 0.5, 0.75, 1.0])))
    return scores, draw(arrays(np.int8, shape, elements=st.sampled_from([1, 0, -1])))


def literal_six(predicted: NDArray[np.bool_], targets: NDArray[np.int8]) -> list[float]:
    """HSQ appendix A.1, entry by entry. A label without a positive is left out of the class averages."""
    correct, given_, truth = [], [], []
    for i in range(targets.shape[1]):
        pairs = [(p, t) for p, t in zip(predicted[:, i], targets[:, i], strict=True) if t >= 0]
        correct.append(sum(1 for p, t in pairs if p and t == 1))
        given_.append(sum(1 for p, _ in pairs if p))
        truth.append(sum(1 for _, t in pairs if t == 1))
    labels = [i for i, n in enumerate(truth) if n > 0]
    if not labels:
        return [float("nan")] * 6
    cp = sum(correct[i] / given_[i] if given_[i] else 0.0 for i in labels) / len(labels)
    cr = sum(correct[i] / truth[i] for i in labels) / len(labels)
    op = sum(correct) / sum(given_) if sum(given_) else 0.0
    overall_recall = sum(correct) / sum(truth)

    def harmonic(a: float, b: float) -> float:
        return 2 * a * b / (a + b) if a + b else 0.0

    return [cp, cr, harmonic(cp, cr), op, overall_recall, harmonic(op, overall_recall)]


def literal_top_k(scores: NDArray[np.float32], targets: NDArray[np.int8], k: int) -> NDArray[np.bool_]:
    """Each image's known labels by falling score, earlier label first; the first k are predicted."""
    predicted = np.zeros(scores.shape, dtype=bool)
    for row in range(len(scores)):
        known = [i for i in range(scores.shape[1]) if targets[row, i] >= 0]
        predicted[row, sorted(known, key=lambda i: (-scores[row, i], i))[:k]] = True
    return predicted


def six(result: PrecisionRecall) -> list[float]:
    return [getattr(result, name) for name in SIX]


@given(evaluations(), st.sampled_from([-1.0, 0.0, 0.5, 0.6, 2.0]))
@settings(max_examples=200, deadline=None)
def test_thresholds_equal_the_literal_formula(evaluation, threshold) -> None:
    scores, targets = evaluation
    expected = literal_six(scores >= threshold, targets)
    np.testing.assert_allclose(six(precision_recall(scores, targets, threshold)), expected, atol=1e-12)


@given(evaluations(), st.integers(1, 8))
@settings(max_examples=300, deadline=None)
def test_top_k_equals_the_literal_formula(evaluation, k) -> None:
    scores, targets = evaluation
    expected = literal_six(literal_top_k(scores, targets, k), targets)
    result = top_k_precision_recall(scores, targets, k)
    np.testing.assert_allclose(six(result), expected, atol=1e-12)
    np.testing.assert_equal(f1_at_k(scores, targets, k), result.OF1)


@given(evaluations())
@settings(deadline=None)
def test_scores_of_unknown_entries_change_nothing(evaluation) -> None:
    scores, targets = evaluation
    other = np.where(targets < 0, np.float32(0.9), scores)
    np.testing.assert_equal(six(precision_recall(scores, targets)), six(precision_recall(other, targets)))
    np.testing.assert_equal(six(top_k_precision_recall(scores, targets)), six(top_k_precision_recall(other, targets)))
    np.testing.assert_equal(top_k_accuracy(scores, targets), top_k_accuracy(other, targets))


def test_equals_scikit_learn_macro_and_micro() -> None:
    rng = np.random.default_rng(0)
    scores, targets = rng.random((300, 12), dtype=np.float32), rng.integers(0, 2, (300, 12))
    thresholds = rng.random(12)
    ours = precision_recall(scores, targets, thresholds)
    predicted = scores >= thresholds
    macro = precision_recall_fscore_support(targets, predicted, average="macro", zero_division=0)
    micro = precision_recall_fscore_support(targets, predicted, average="micro", zero_division=0)
    assert pytest.approx(macro[:2]) == (ours.CP, ours.CR)
    assert pytest.approx(micro[:3]) == (ours.OP, ours.OR, ours.OF1)
    # scikit-learn's macro F1 is the mean of the labels' F1, which is another number than CF1
    assert pytest.approx(2 * ours.CP * ours.CR / (ours.CP + ours.CR)) == ours.CF1
    assert abs(ours.CF1 - macro[2]) > 1e-4


def test_a_label_that_is_never_predicted_counts_as_precision_zero_and_is_reported() -> None:
    scores = np.array([[0.9, 0.1, 0.1], [0.8, 0.2, 0.1]])
    result = precision_recall(scores, np.array([[1, 1, 0], [1, 0, 0]]))  # label 2 has no positive: left out
    assert (result.CP, result.CR) == (0.5, 0.5)
    assert result.labels_never_predicted == 1
    assert precision_recall(scores, np.array([[1, 0, 0], [1, 0, 0]])).labels_never_predicted == 0


def test_nothing_predicted_is_zero_and_no_positive_is_undefined() -> None:
    scores = np.array([[0.1, 0.2]])
    assert six(precision_recall(scores, np.array([[1, 0]]))) == [0.0] * 6
    assert np.isnan(six(precision_recall(scores, np.array([[0, 0]]), 0.0))).all()
    assert np.isnan(six(top_k_precision_recall(scores, np.array([[-1, -1]])))).all()


def test_an_image_without_positives_costs_precision() -> None:
    scores, targets = np.array([[0.9, 0.1], [0.8, 0.7]]), np.array([[1, 0], [0, 0]])
    assert pytest.approx(1 / 3) == precision_recall(scores, targets).OP
    assert top_k_precision_recall(scores, targets, 1).OP == 0.5


def test_of_tied_labels_the_first_takes_the_place() -> None:
    scores = np.array([[0.5, 0.5, 0.5, 0.9]])
    assert top_k_precision_recall(scores, np.array([[1, 0, 0, 1]]), 2).OF1 == 1.0
    assert top_k_precision_recall(scores, np.array([[0, 1, 0, 1]]), 2).OF1 == 0.5


def test_a_score_equal_to_its_threshold_passes_in_every_precision() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        scores = torch.tensor([[0.7, 0.1]], dtype=dtype)
        thresholds = scores.double()[0] if dtype == torch.bfloat16 else [0.7, 0.1]
        assert precision_recall(scores, torch.ones(1, 2), thresholds).OR == 1.0


def test_one_label_set() -> None:
    scores, targets = np.array([[0.9], [0.2], [0.6]]), np.array([[1], [1], [0]])
    assert six(precision_recall(scores, targets)) == [0.5] * 6
    assert top_k_precision_recall(scores, targets).CR == 1.0  # top 3 of one label is that label


@pytest.mark.parametrize("k", [1, 5])
def test_accuracy_equals_scikit_learn(k: int) -> None:
    rng = np.random.default_rng(k)
    scores, numbers = rng.random((400, 10)), rng.integers(0, 10, 400)
    expected = top_k_accuracy_score(numbers, scores, k=k)
    assert top_k_accuracy(scores, numbers, k) == pytest.approx(expected)
    assert top_k_accuracy(torch.from_numpy(scores), np.eye(10)[numbers], k) == pytest.approx(expected)


def test_accuracy_leaves_out_images_without_a_known_label() -> None:
    scores = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.4]])
    assert top_k_accuracy(scores, np.array([0, 1, -1])) == 0.5
    assert top_k_accuracy(scores, np.array([[1, 0], [0, 1], [0, 0]])) == 0.5
    assert np.isnan(top_k_accuracy(scores, np.array([-1, -1, -1])))
