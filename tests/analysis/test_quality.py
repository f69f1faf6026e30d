"""Doubtful labels: cleanlab's multi-label function, and labels that were spoilt on purpose."""

from __future__ import annotations

import numpy as np
import pytest

from labelwise.analysis.quality import label_issues


def spoilt(seed: int = 0, images: int = 600, labels: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of a fair model, targets of which 3 % were turned over, and where."""
    generator = np.random.default_rng(seed)
    truth = generator.random((images, labels)) < 0.3
    scores = 1 / (1 + np.exp(-(5.0 * truth - 2.5 + generator.normal(0, 1, truth.shape))))
    turned = generator.random(truth.shape) < 0.03
    return scores, (truth ^ turned).astype(np.int8), turned


def test_what_was_spoilt_is_found() -> None:
    scores, targets, turned = spoilt()
    issues = label_issues(scores, targets)
    right = [turned[issue.row, issue.column] for issue in issues]
    assert sum(right) >= 0.8 * turned.sum()
    assert np.mean(right[: int(turned.sum())]) > 0.8  # chance: 0.03
    assert [issue.trust for issue in issues] == sorted(issue.trust for issue in issues)
    for issue in issues:
        assert issue.kind == ("wrong" if targets[issue.row, issue.column] == 1 else "missing")


@pytest.mark.parametrize("seed", range(6))
def test_the_same_entries_as_cleanlabs_multi_label_function(seed: int) -> None:
    cleanlab = pytest.importorskip("cleanlab.multilabel_classification.filter")

    scores, targets, _ = spoilt(seed, images=150 + 90 * seed)
    lists = [np.flatnonzero(row).tolist() for row in targets]
    expected = cleanlab.find_multilabel_issues_per_class(lists, scores, n_jobs=1)  # [M, N] of booleans
    found = {(issue.row, issue.column) for issue in label_issues(scores, targets)}
    assert found == {(int(row), int(column)) for row, column in np.argwhere(expected)}


def test_unknown_entries_and_rare_labels_are_not_questioned() -> None:
    scores, targets, _ = spoilt(seed=2)
    targets[:100, 0] = -1
    targets[:, 1] = 0
    targets[:3, 1] = 1
    issues = label_issues(scores, targets)
    assert issues
    assert not any(issue.column == 1 or (issue.column == 0 and issue.row < 100) for issue in issues)
