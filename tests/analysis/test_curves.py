"""Curves against scikit-learn and against the metrics they draw."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from sklearn.metrics import precision_recall_curve as sklearn_curve

from labelwise.analysis.curves import (
    best_f1,
    co_occurrence,
    common_threshold,
    few_of_each,
    precision_recall_curve,
    reliability,
)
from labelwise.evaluation import expected_calibration_error
from labelwise.metrics import average_precision, precision_recall
from labelwise.reports.run_sections import _from_zero


def scored(seed: int, images: int = 200, labels: int = 1) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    targets = (generator.random((images, labels)) < 0.3).astype(np.int8)
    scores = np.round(1 / (1 + np.exp(-(2 * targets + generator.normal(-1, 1, targets.shape)))), 2)
    return scores, targets


@given(st.integers(0, 50))
@settings(max_examples=20, deadline=None)
def test_the_curve_is_scikit_learns(seed: int) -> None:
    scores, targets = scored(seed)
    curve = precision_recall_curve(scores[:, 0], targets[:, 0], points=10_000)
    precision, recall, _ = sklearn_curve(targets[:, 0], scores[:, 0], drop_intermediate=False)
    expected = sorted({(float(r), float(p)) for r, p in zip(recall, precision, strict=True) if r > 0})
    # scikit-learn goes on below the last positive: the same recall with ever lower precision.
    assert {(round(r, 9), round(p, 9)) for r, p in curve} <= {(round(r, 9), round(p, 9)) for r, p in expected} | {
        (0.0, 0.0)
    }
    steps = np.diff([0.0, *(r for r, _ in curve)])
    area = float((steps * np.array([p for _, p in curve])).sum())
    assert area == pytest.approx(float(average_precision(scores, targets)[0]))
    best = max(f1_score(targets[:, 0], scores[:, 0] >= t) for t in np.unique(scores))
    assert best_f1(scores[:, 0], targets[:, 0]) == pytest.approx(best)


def test_a_thinned_curve_keeps_its_ends_and_unknown_entries_do_not_count() -> None:
    scores, targets = scored(1, images=5000)
    whole = precision_recall_curve(scores[:, 0] + np.arange(5000) * 1e-9, targets[:, 0], points=10_000)
    thin = precision_recall_curve(scores[:, 0] + np.arange(5000) * 1e-9, targets[:, 0], points=40)
    assert len(thin) <= 42 < len(whole)
    assert (thin[0], thin[-1]) == (whole[0], whole[-1])
    assert set(thin) <= set(whole)
    with_unknown = precision_recall_curve(np.append(scores[:, 0], 0.99), np.append(targets[:, 0], -1).astype(np.int8))
    assert with_unknown == precision_recall_curve(scores[:, 0], targets[:, 0])
    assert precision_recall_curve(scores[:, 0], np.zeros(5000, np.int8)) == []


def test_one_threshold_gives_what_the_metrics_give() -> None:
    scores, targets = scored(2, labels=4)
    targets[::9, 0] = -1
    found = common_threshold(scores, targets, steps=10)
    for place, threshold in enumerate(found.thresholds):
        expected = precision_recall(scores, targets, float(threshold))
        assert found.recall[place] == pytest.approx(expected.OR)
        assert found.f1[place] == pytest.approx(expected.OF1)
        if not np.isnan(found.precision[place]):
            assert found.precision[place] == pytest.approx(expected.OP)


def test_the_bins_add_up_to_the_calibration_error() -> None:
    scores, targets = scored(3, labels=3)
    targets[:20] = -1
    bins = reliability(scores, targets)
    entries = sum(one.entries for one in bins)
    error = sum(one.entries * abs(one.score - one.share) for one in bins) / entries
    assert entries == 180 * 3
    assert error == pytest.approx(expected_calibration_error(scores, targets))


def test_company_is_counted_where_both_labels_are_known() -> None:
    generator = np.random.default_rng(0)
    targets = generator.integers(-1, 2, (60, 5)).astype(np.int8)
    predicted = generator.random((60, 5)) < 0.4
    found = co_occurrence(targets, predicted, most=4)
    assert len(found.columns) == 4
    for i, a in enumerate(found.columns):
        for j, b in enumerate(found.columns):
            both_known = (targets[:, a] >= 0) & (targets[:, b] >= 0)
            for shares, present in ((found.truth, targets == 1), (found.predicted, predicted)):
                there = present[both_known]
                expected = (there[:, a] & there[:, b]).sum() / there[:, a].sum()
                assert shares[i, j] == pytest.approx(expected)
    a, b, truth, named = found.surprises(least=1)[0]
    off_diagonal = ~np.eye(4, dtype=bool)
    assert abs(truth - named) == pytest.approx(np.abs(found.truth - found.predicted)[off_diagonal].max())
    assert a != b


def test_mistakes_are_read_only_until_there_are_enough() -> None:
    items = iter([3, 3, 3, 3, 5, 7, 8, 9])
    assert few_of_each(items, lambda item: item, most=4) == [3, 3, 3, 5]
    assert 9 in items


def test_a_drawn_curve_starts_at_its_first_positive() -> None:
    """One positive, found fifth: precision 0.2 at every recall, not a line that rises from nothing."""
    curve = precision_recall_curve(np.array([0.9, 0.8, 0.7, 0.6, 0.5]), np.array([0, 0, 0, 0, 1], np.int8))
    assert _from_zero(curve) == [(0.0, 0.2), (1.0, 0.2)]
