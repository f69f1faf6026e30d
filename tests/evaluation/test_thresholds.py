"""Fitted thresholds against brute force over every cut point."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import precision_recall_curve

from labelwise.core.errors import LabelwiseError
from labelwise.evaluation import fit_thresholds, threshold_fit
from labelwise.evaluation.thresholds import parse_rule
from labelwise.metrics import multilabel_scores

# Few distinct values, so that ties are the rule; neighbouring float32 numbers, so that middles have to round.
TIED = st.sampled_from([np.float32(v) for v in (0.0, 0.25, 0.5, np.nextafter(np.float32(0.5), np.float32(1)), 0.75, 1)])
COLUMNS = st.integers(1, 12).flatmap(
    lambda m: st.tuples(
        hnp.arrays(np.float32, (m, 1), elements=TIED | st.floats(0, 1, width=32)),
        hnp.arrays(np.int8, (m, 1), elements=st.sampled_from([1, 0, -1])),
    )
)


def outcome(scores: np.ndarray, targets: np.ndarray, threshold: float) -> tuple[float, float, float]:
    """F1, precision and recall, counted one entry at a time."""
    known = [
        (score >= np.float32(threshold), truth == 1) for score, truth in zip(scores, targets, strict=True) if truth >= 0
    ]
    right = sum(bool(passes and present) for passes, present in known)
    predicted, positives = sum(bool(passes) for passes, _ in known), sum(bool(present) for _, present in known)
    precision, recall = right / predicted if predicted else 0.0, right / positives if positives else 0.0
    return 2 * precision * recall / (precision + recall) if right else 0.0, precision, recall


def every_cut(scores: np.ndarray, targets: np.ndarray) -> list[tuple[float, float, float]]:
    return [outcome(scores, targets, cut) for cut in np.unique(scores[targets >= 0])]


@settings(max_examples=150, deadline=None)
@given(COLUMNS)
def test_f1_is_the_highest_of_all_cut_points(column: tuple[np.ndarray, np.ndarray]) -> None:
    scores, targets = column
    fit = threshold_fit(scores, targets)
    assert fit.fallback[0] == (not (targets == 1).any())
    if not fit.fallback[0]:
        best = max(f1 for f1, _, _ in every_cut(scores, targets))
        assert outcome(scores, targets, fit.values[0])[0] == pytest.approx(best, abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(COLUMNS, st.sampled_from([0.1, 1 / 3, 0.5, 2 / 3, 0.9, 1.0]))
def test_precision_target_has_the_highest_recall(column: tuple[np.ndarray, np.ndarray], target: float) -> None:
    scores, targets = column
    reaching = [(p, r) for _, p, r in every_cut(scores, targets) if p >= target] if (targets == 1).any() else []
    fit = threshold_fit(scores, targets, "precision", target)
    assert fit.fallback[0] == (not reaching)
    if reaching:
        _, precision, recall = outcome(scores, targets, fit.values[0])
        assert precision >= target
        assert recall == max(r for _, r in reaching)


@settings(max_examples=150, deadline=None)
@given(COLUMNS, st.sampled_from([0.1, 1 / 3, 0.5, 2 / 3, 0.9, 1.0]))
def test_recall_target_is_met_with_the_fewest_predictions(column: tuple[np.ndarray, np.ndarray], target: float) -> None:
    scores, targets = column
    fit = threshold_fit(scores, targets, "recall", target)
    assert fit.fallback[0] == (not (targets == 1).any())
    if not fit.fallback[0]:
        assert outcome(scores, targets, fit.values[0])[2] >= target
        known = scores[targets >= 0]
        higher = known[known >= np.float32(fit.values[0])].min()  # the next threshold up loses this score
        above = np.nextafter(higher, np.float32(2))
        assert outcome(scores, targets, float(above))[2] < target


def test_the_threshold_lies_in_the_middle_of_the_gap() -> None:
    scores = np.array([[0.9], [0.7], [0.3], [0.1]])
    assert fit_thresholds(scores, np.array([[1], [1], [0], [0]])) == pytest.approx([0.5])
    assert fit_thresholds(scores, np.array([[1], [1], [-1], [0]])) == pytest.approx([0.4])  # unknown: not there
    assert fit_thresholds(scores, np.array([[1], [1], [1], [1]])) == pytest.approx([0.1])  # nothing below


def test_labels_without_evidence_get_the_median_of_the_others_and_are_counted() -> None:
    scores = np.array([[0.9, 0.8, 0.7, 0.6], [0.5, 0.4, 0.3, 0.9], [0.1, 0.1, 0.1, 0.1]])
    targets = np.array([[1, 1, 0, 1], [0, 0, -1, 0], [0, 0, 0, 0]])
    fit = threshold_fit(scores, targets, "precision", 0.9)
    assert fit.fallback.tolist() == [False, False, True, True]  # no positive; 0.5 is the best precision there is
    assert fit.values.tolist() == pytest.approx([0.7, 0.6, 0.65, 0.65])
    nothing = threshold_fit(scores, np.full_like(targets, -1))
    assert nothing.fallback.all()
    assert nothing.values.tolist() == [0.5] * 4


def test_fitted_thresholds_beat_one_half_in_the_metrics_package_too() -> None:
    generator = np.random.default_rng(3)
    targets = (generator.random((500, 8)) < 0.2).astype(np.int8)
    scores = 1 / (1 + np.exp(-(targets * 2 + generator.normal(-2.5, 1, targets.shape))))
    fitted = multilabel_scores(scores, targets, thresholds=fit_thresholds(scores, targets)).to_dict()
    plain = multilabel_scores(scores, targets).to_dict()
    best = []
    for n in range(8):
        precision, recall, _ = precision_recall_curve(targets[:, n], scores[:, n])
        best.append(100 * np.nanmax(2 * precision * recall / (precision + recall)))
    assert [row["F1"] for row in fitted["per_label"]] == pytest.approx(best)
    assert fitted["CF1"] > plain["CF1"]


def test_tensors_are_taken_too() -> None:
    scores, targets = torch.tensor([[0.9], [0.2]]), torch.tensor([[1], [0]])
    assert fit_thresholds(scores, targets) == pytest.approx([0.55])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("precison=0.9", "unknown threshold rule 'precison'; did you mean 'precision=0.9'?"),
        ("f1=0.5", "takes no target"),
        ("precision", "needs a target"),
        ("recall=1.5", "needs a target above 0 and up to 1"),
        ("recall=nan", "needs a target"),
        ("recall=most", "'most' is not a number"),
    ],
)
def test_a_wrong_rule_is_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(LabelwiseError, match=re.escape(message)):
        parse_rule(text)


def drawn(images: int, prevalence: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated probabilities [M, N] and targets that follow them."""
    generator = np.random.default_rng(seed)
    logits = np.log(prevalence / (1 - prevalence)) + generator.normal(0, 2, (images, len(prevalence)))
    scores = 1 / (1 + np.exp(-logits))
    return scores, (generator.random(scores.shape) < scores).astype(np.int8)


def test_auto_holds_on_other_images_where_f1_does_not() -> None:
    """60 images and 40 rare labels: one positive that happens to score low takes the threshold of `f1` with it."""
    prevalence = np.geomspace(0.01, 0.1, 40)
    test_scores, test_targets = drawn(5000, prevalence, seed=99)
    gains = []
    for seed in range(5):
        scores, targets = drawn(60, prevalence, seed)
        found = [
            multilabel_scores(test_scores, test_targets, thresholds=fit_thresholds(scores, targets, rule)).to_dict()[
                "OF1"
            ]
            for rule in ("auto", "f1")
        ]
        gains.append(found[0] - found[1])
    assert min(gains) > 0
    assert np.mean(gains) > 2


def test_auto_follows_a_labels_own_images_once_there_are_many() -> None:
    scores, targets = drawn(20_000, np.array([0.05, 0.3]), seed=0)
    scores[:, 0] **= 3  # far too low: its own positives tell
    auto, f1 = (fit_thresholds(scores, targets, rule) for rule in ("auto", "f1"))
    for label in range(2):
        reached = [outcome(scores[:, label], targets[:, label], rule[label])[0] for rule in (auto, f1)]
        assert reached[0] > reached[1] - 0.01


@settings(max_examples=40, deadline=None)
@given(COLUMNS)
def test_auto_is_always_a_threshold(column: tuple[np.ndarray, np.ndarray]) -> None:
    fit = threshold_fit(*column, "auto")
    assert ((fit.values > 0) & (fit.values < 1)).all()
    assert fit.fallback[0] == ((column[1] == 1).sum() < 10)
