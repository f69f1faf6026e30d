"""Paired samples against a loop that really takes the images out and measures both models on them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labelwise.evaluation import benjamini_hochberg, bootstrap_draws, paired_difference
from labelwise.metrics import average_precision, multilabel_scores


def two_models(images: int = 80, labels: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Targets with unknown entries, and two models of which the first is a little better."""
    generator = np.random.default_rng(seed)
    targets = (generator.random((images, labels)) < 0.3).astype(np.int8)
    shared = generator.normal(0, 1, targets.shape)
    good, bad = (np.round(gain * targets + shared + generator.normal(0, 0.3, targets.shape), 1) for gain in (1.2, 0.9))
    targets[generator.random(targets.shape) < 0.05] = -1
    return good, bad, targets


def test_the_difference_is_that_of_a_plain_loop() -> None:
    good, bad, targets = two_models()
    a, b = (bootstrap_draws(scores, targets, samples=60, seed=3) for scores in (good, bad))
    generator = np.random.default_rng(3)
    gaps, mean_gaps = [], []
    for drawn in generator.permuted(np.tile(np.arange(80) < 40, (60, 1)), axis=1):  # one row for each sample
        both = [average_precision(scores[drawn], targets[drawn]).numpy() for scores in (good, bad)]
        gaps.append(both[0] - both[1])
        mean_gaps.append(
            multilabel_scores(good[drawn], targets[drawn]).mAP - multilabel_scores(bad[drawn], targets[drawn]).mAP
        )
    for label in range(4):
        found = paired_difference(0.1, a.average_precision[label], b.average_precision[label], level=0.9)
        expected = np.array(gaps)[:, label] - np.mean(gaps, axis=0)[label] + 0.1
        assert (found.interval.low, found.interval.high) == pytest.approx(normal_interval(expected))
        assert found.p == pytest.approx(2 * stats.norm.sf(0.1 / expected.std()))
    whole = paired_difference(0.1, a.metrics["mAP"], b.metrics["mAP"], level=0.9)
    expected = np.array(mean_gaps) - np.mean(mean_gaps) + 0.1
    assert (whole.interval.low, whole.interval.high) == pytest.approx(normal_interval(expected))


def normal_interval(values: np.ndarray) -> tuple[float, float]:
    """At the level of 0.9."""
    return stats.norm.interval(0.9, values.mean(), values.std())


def test_pairing_sees_what_two_intervals_hide() -> None:
    good, bad, targets = two_models(images=300, seed=1)
    a, b = (bootstrap_draws(scores, targets, samples=300) for scores in (good, bad))
    first, second = a.intervals(0.95)["mAP"], b.intervals(0.95)["mAP"]
    assert first.low < second.high  # seen alone, the two might be equal
    found = paired_difference(0.05, a.metrics["mAP"], b.metrics["mAP"])
    assert found.interval.low > 0
    assert found.p < 0.02


def test_equal_models_seldom_differ() -> None:
    """Two models of the same quality on the same images: p < 0.05 in about 1 of 20 comparisons."""
    called = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        targets = (generator.random((150, 1)) < 0.4).astype(np.int8)
        a, b = (
            bootstrap_draws(targets + generator.normal(0, 1, targets.shape), targets, samples=150) for _ in range(2)
        )
        called += paired_difference(0.01, a.metrics["mAP"], b.metrics["mAP"]).p < 0.05
    assert called <= 9  # of 60; more has a chance of 0.2 %


def test_nothing_to_compare_is_not_a_number() -> None:
    empty = np.full(10, np.nan)
    assert np.isnan(paired_difference(float("nan"), empty, empty).p)
    assert np.isnan(paired_difference(0.5, empty, empty).interval.low)


@given(st.lists(st.one_of(st.floats(0, 1), st.just(float("nan"))), max_size=30), st.floats(0.01, 0.5))
def test_discoveries_follow_the_definition(p: list[float], share: float) -> None:
    """Benjamini and Hochberg: the largest k with p(k) <= k / m x share; the k smallest are called real."""
    values = np.array(p, float)
    ranked = sorted(value for value in p if value == value)
    k = max((i for i, value in enumerate(ranked, start=1) if value <= share * i / len(ranked)), default=0)
    found = benjamini_hochberg(values, share)
    assert found.sum() == k
    assert not found[np.isnan(values)].any()
    if k:
        assert np.nanmax(values[found]) <= ranked[k - 1]
