"""Published conventions against literal formulas of the codes that define them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from labelwise.core.errors import LabelwiseError
from labelwise.metrics import list_conventions, multilabel_scores, scores_as

Array = NDArray[np.float64]


def envelope_area(scores: Array, targets: NDArray[np.int8]) -> float:
    """SSGRL's area: walk the ranking, make precision monotone from the right, add up the recall steps."""
    ranked = targets[np.argsort(-scores)] == 1
    hits = np.cumsum(ranked)
    precision = hits / np.arange(1, len(hits) + 1)
    recall = hits / hits[-1]
    area, before = 0.0, 0.0
    for place in range(len(hits)):
        area += (recall[place] - before) * precision[place:].max()
        before = recall[place]
    return area


def ml_gcn_top_3(scores: Array, targets: NDArray[np.int8]) -> tuple[float, float]:
    """CF1 and OF1 of the three best labels of each image that also reach 0.5; sums as loops."""
    correct, predicted = np.zeros(targets.shape[1]), np.zeros(targets.shape[1])
    for row, truth in zip(scores, targets, strict=True):
        for label in np.argsort(-row)[:3]:
            if row[label] >= 0.5:
                predicted[label] += 1
                correct[label] += truth[label] == 1
    positives = (targets == 1).sum(axis=0)
    per_class = np.mean(correct / np.maximum(predicted, 1)), np.mean(correct / positives)
    overall = correct.sum() / max(predicted.sum(), 1), correct.sum() / positives.sum()
    return harmonic(*per_class), harmonic(*overall)


def harmonic(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 7))
def test_query2label(seed: int, images: int, labels: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.permutation(images * labels).reshape(images, labels) / (images * labels)  # no ties
    targets = rng.integers(0, 2, (images, labels), dtype=np.int8)
    targets[0] = 1  # every label has a positive
    found = scores_as("query2label", scores, targets)
    expected = [envelope_area(scores[:, label], targets[:, label]) for label in range(labels)]
    np.testing.assert_allclose(found.average_precision, expected, atol=1e-12)
    assert found.mAP >= multilabel_scores(scores, targets).mAP - 1e-12  # the envelope lies above the steps
    class_f1, overall_f1 = ml_gcn_top_3(scores, targets)
    assert pytest.approx(class_f1) == found.at_top_k[3].CF1
    assert pytest.approx(overall_f1) == found.at_top_k[3].OF1
    assert scores_as("ml-gcn", scores, targets).at_top_k == found.at_top_k


def test_a_perfect_ranker_reaches_100_only_where_the_threshold_counts() -> None:
    targets = np.eye(4, 8, dtype=np.int8)  # one label an image
    scores = targets * 0.9
    assert scores_as("ml-gcn", scores, targets).at_top_k[3].OF1 == 1
    assert pytest.approx(0.5) == scores_as("labelwise", scores, targets).at_top_k[3].OF1  # three answers, one right


def test_open_images_leaves_out_labels_without_a_verified_negative() -> None:
    targets = np.array([[1, 1], [-1, 0], [1, 1]], dtype=np.int8)
    scores = np.array([[0.2, 0.3], [0.9, 0.9], [0.1, 0.2]])
    found = scores_as("open-images", scores, targets)
    assert np.isnan(found.average_precision[0])
    assert found.mAP == found.average_precision[1] < 1
    assert scores_as("labelwise", scores, targets).average_precision[0] == 1


def test_nus_wide_leaves_out_images_without_a_positive() -> None:
    targets = np.array([[1, 0], [0, 0], [0, 1]], dtype=np.int8)
    scores = np.array([[0.9, 0.1], [0.95, 0.95], [0.1, 0.8]])
    found = scores_as("nus-wide-zsl", scores, targets)
    assert found.images == 2
    assert found.mAP == 1 > scores_as("labelwise", scores, targets).mAP


def test_voc2007_is_the_eleven_point_mean() -> None:
    rng = np.random.default_rng(0)
    scores, targets = rng.random((30, 4)), rng.integers(0, 2, (30, 4))
    assert scores_as("voc2007", scores, targets).mAP == multilabel_scores(scores, targets, method="11-point").mAP


def test_ours_is_the_default_and_an_unknown_one_is_named() -> None:
    rng = np.random.default_rng(0)
    scores, targets = rng.random((30, 4)), rng.integers(-1, 2, (30, 4))
    assert scores_as("labelwise", scores, targets).to_dict() == multilabel_scores(scores, targets).to_dict()
    with pytest.raises(LabelwiseError, match="did you mean 'query2label'"):
        scores_as("query2labels", scores, targets)
    assert "query2label" in list_conventions()
