"""The one result: what is in it, and in what it becomes in JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from labelwise.metrics import (
    average_precision,
    mean_average_precision,
    multilabel_scores,
    precision_recall,
    top_k_accuracy,
    top_k_precision_recall,
)


def example() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    scores, targets = rng.random((40, 6)), rng.integers(-1, 2, (40, 6))
    targets[:, 4] = np.minimum(targets[:, 4], 0)  # no positive
    scores[:, 5] = 0.1  # never predicted
    return scores, targets


def test_holds_what_the_single_functions_give() -> None:
    scores, targets = example()
    result = multilabel_scores(scores, targets, thresholds=0.4, top_k=(1, 3))
    np.testing.assert_array_equal(result.average_precision, average_precision(scores, targets))
    assert result.mAP == mean_average_precision(scores, targets)
    assert result.at_thresholds == precision_recall(scores, targets, 0.4)
    assert result.at_top_k == {k: top_k_precision_recall(scores, targets, k) for k in (1, 3)}
    assert result.accuracy_at_top_k == {k: top_k_accuracy(scores, targets, k) for k in (1, 3)}


def test_counts_what_the_numbers_rest_on() -> None:
    scores, targets = example()
    result = multilabel_scores(scores, targets)
    assert (result.images, result.labels) == (40, 6)
    assert result.labels_without_positives == 1
    assert result.labels_never_predicted == 1
    assert result.unknown_entries == int((targets == -1).sum())


def test_json_holds_percentages_and_null_for_what_is_undefined() -> None:
    scores, targets = example()
    result = multilabel_scores(scores, targets)
    names = ["cat", "dog", "sofa", "car", "tree", "bird"]
    data = json.loads(json.dumps(result.to_dict(names), allow_nan=False))
    six = ["CP", "CR", "CF1", "OP", "OR", "OF1"]
    assert [key for key in data if key in six] == six
    assert {f"{name}_top3" for name in six} <= set(data)
    assert data["mAP"] == pytest.approx(100 * result.mAP)
    assert data["OF1_top3"] == pytest.approx(100 * result.at_top_k[3].OF1)
    tree, bird = data["per_label"][4], data["per_label"][5]
    assert (tree["label"], tree["AP"], tree["precision"], tree["recall"], tree["positives"]) == (
        "tree",
        None,
        None if tree["predicted"] == 0 else 0.0,
        None,
        0,
    )
    assert (bird["precision"], bird["recall"], bird["predicted"]) == (0.0, 0.0, 0)
    with_positive = [row for row in data["per_label"] if row["positives"]]
    assert data["mAP"] == pytest.approx(np.mean([row["AP"] for row in with_positive]))
    assert data["CP"] == pytest.approx(np.mean([row["precision"] for row in with_positive]))
    assert data["CR"] == pytest.approx(np.mean([row["recall"] for row in with_positive]))


def test_nothing_known_is_all_null() -> None:
    data = multilabel_scores(np.ones((2, 2)), np.full((2, 2), -1)).to_dict()
    assert {data[key] for key in ("mAP", "CP", "OF1", "CF1_top3", "accuracy_top3")} == {None}
    assert data["unknown_entries"] == 4
