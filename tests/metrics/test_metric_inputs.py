"""Wrong input is refused in one line that names the entry and the fix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labelwise.core.errors import LabelwiseError
from labelwise.metrics import (
    MultiLabelMetrics,
    average_precision,
    multilabel_scores,
    precision_recall,
    top_k_accuracy,
    top_k_precision_recall,
)

GOOD = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
TARGETS = torch.tensor([[1, 0], [0, 1]])


def nan_at(row: int, column: int) -> torch.Tensor:
    scores = GOOD.clone()
    scores[row, column] = float("nan")
    return scores


@pytest.mark.parametrize("metric", [average_precision, precision_recall, top_k_precision_recall, top_k_accuracy])
def test_nan_scores_are_named_by_row_and_column(metric) -> None:
    with pytest.raises(LabelwiseError, match=r"score at row 1, column 0 is NaN \(1 in all\)"):
        metric(nan_at(1, 0), TARGETS)
    with pytest.raises(LabelwiseError, match="row 0, column 1"):  # also where the target is unknown
        metric(nan_at(0, 1), torch.tensor([[1, -1], [0, 1]]))


@pytest.mark.parametrize(
    ("scores", "targets", "message"),
    [
        (GOOD[0], TARGETS[0], r"scores must be \[images, labels\], got shape \(2,\); one label is \[images, 1\]"),
        (GOOD, TARGETS[:1], r"targets have shape \(1, 2\), scores \(2, 2\); they must be equal"),
        (GOOD, TARGETS + 1, "target at row 0, column 0 is 2; use 1"),
        (GOOD, TARGETS - 2, "target at row 0, column 1 is -2; use 1"),
        (GOOD, TARGETS + 256, "target at row 0, column 0 is 257"),  # would wrap around to 1 in int8
        (GOOD, TARGETS * 0.5, "target at row 0, column 0 is 0.5"),
        (GOOD, TARGETS * float("nan"), "target at row 0, column 0 is nan"),
    ],
)
def test_wrong_shapes_and_values(scores, targets, message) -> None:
    with pytest.raises(LabelwiseError, match=message):
        average_precision(scores, targets)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: precision_recall(GOOD, TARGETS, [0.1, 0.2, 0.3]), r"shape \(3,\); give one number or one per label"),
        (lambda: precision_recall(GOOD, TARGETS, [0.1, float("nan")]), "threshold 1 is NaN"),
        (lambda: top_k_precision_recall(GOOD, TARGETS, 0), "k=0: top-k needs a whole number of 1 or more"),
        (lambda: top_k_precision_recall(GOOD, TARGETS, 1.5), "k=1.5"),
        (lambda: top_k_accuracy(GOOD, np.array([0, 2])), "label number 2 at row 1; use 0 to 1"),
        (lambda: top_k_accuracy(GOOD, np.array([0])), "1 label numbers for 2 images"),
        (lambda: multilabel_scores(GOOD, TARGETS).to_dict(["cat"]), "1 label names for 2 labels"),
        (lambda: MultiLabelMetrics(labels=3).update(GOOD, TARGETS), "scores have 2 labels, these metrics 3"),
        (lambda: MultiLabelMetrics(labels=2).compute(), r"no images to evaluate; call update\(\) first"),
        (lambda: MultiLabelMetrics(2).merge(MultiLabelMetrics(2, top_k=5)), "only metrics with equal labels"),
    ],
)
def test_other_mistakes(call, message) -> None:
    with pytest.raises(LabelwiseError, match=message):
        call()
