"""Temperature against scipy's optimiser, ECE against torchmetrics', and what a temperature must not change."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize, minimize_scalar
from torch.nn import functional as F
from torchmetrics.functional.classification import binary_calibration_error

from labelwise.core.errors import LabelwiseError
from labelwise.evaluation import expected_calibration_error, fit_platt, fit_temperature
from labelwise.metrics import mean_average_precision


def logits_and_targets(seed: int, true_temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Targets drawn with the probabilities sigmoid(logits / true_temperature); a tenth of them unknown."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, 3, (4000, 5)).astype(np.float32)
    targets = (generator.random(logits.shape) < 1 / (1 + np.exp(-logits / true_temperature))).astype(np.int8)
    targets[generator.random(logits.shape) < 0.1] = -1
    return logits, targets


@pytest.mark.parametrize("true_temperature", [0.4, 1.0, 2.5])
def test_the_temperature_that_made_the_targets_is_found_and_mends_the_ece(true_temperature: float) -> None:
    logits, targets = logits_and_targets(0, true_temperature)
    fitted = fit_temperature(logits, targets)
    assert fitted == pytest.approx(true_temperature, rel=0.05)
    known = torch.from_numpy(targets >= 0)

    def loss(log_temperature: float) -> float:
        scaled = torch.from_numpy(logits).double()[known] / np.exp(log_temperature)
        return float(F.binary_cross_entropy_with_logits(scaled, torch.from_numpy(targets)[known].double()))

    best = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9})
    assert fitted == pytest.approx(np.exp(best.x), rel=1e-5)
    before = expected_calibration_error(1 / (1 + np.exp(-logits)), targets)
    after = expected_calibration_error(1 / (1 + np.exp(-logits / fitted)), targets)
    assert after < 0.02
    assert after <= before + 1e-3


@pytest.mark.parametrize(("true_temperature", "true_offset"), [(0.4, 3.0), (1.0, 0.0), (2.5, -1.0)])
def test_temperature_and_offset_that_made_the_targets_are_found(true_temperature: float, true_offset: float) -> None:
    logits, targets = logits_and_targets(0, true_temperature)
    logits = logits + true_offset
    temperature, offset = fit_platt(logits, targets)
    assert temperature == pytest.approx(true_temperature, rel=0.05)
    assert offset == pytest.approx(true_offset, abs=0.1)
    known = targets >= 0
    positives, negatives = (targets == 1).sum(), (targets == 0).sum()
    goal = np.where(targets[known] == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))

    def loss(x: np.ndarray) -> float:
        scaled = torch.from_numpy((logits[known] - x[1]) / np.exp(x[0]))
        return float(F.binary_cross_entropy_with_logits(scaled, torch.from_numpy(goal)))

    best = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-14}).x
    assert (math.log(temperature), offset) == pytest.approx(best, abs=1e-5)
    assert expected_calibration_error(1 / (1 + np.exp((offset - logits) / temperature)), targets) < 0.02


@settings(max_examples=100, deadline=None)
@given(
    arrays(np.float64, (6, 2), elements=st.floats(-1000, 1000)),
    arrays(np.int8, (6, 2), elements=st.integers(-1, 1)),
)
def test_calibration_is_finite_and_turns_no_ranking_round(logits: np.ndarray, targets: np.ndarray) -> None:
    temperature, offset = fit_platt(logits, targets)
    assert 0.05 * (1 - 1e-9) <= temperature <= 20 * (1 + 1e-9)
    assert math.isfinite(offset)


def test_a_single_kind_of_answer_still_has_a_calibration() -> None:
    assert fit_platt(np.ones((3, 2)), np.full((3, 2), -1)) == (1, 0)
    temperature, offset = fit_platt(np.full((3, 1), 4.0), np.ones((3, 1)))  # 3 of 3: 4 of 5 as Platt counts
    assert (4 - offset) / temperature == pytest.approx(math.log(4))
    temperature, offset = fit_platt(np.array([[5.0], [-5.0]]), np.array([[0], [1]]))  # worse than chance
    assert temperature == pytest.approx(20)
    assert offset == pytest.approx(0, abs=1e-6)


def test_softmax_temperature_has_the_lowest_cross_entropy() -> None:
    generator = np.random.default_rng(1)
    logits = generator.normal(0, 4, (3000, 6))
    probabilities = torch.from_numpy(logits / 2).softmax(dim=1)
    labels = torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(0))[:, 0]
    targets = F.one_hot(labels, 6).numpy()
    targets[:5] = 0  # images that say nothing
    fitted = fit_temperature(logits, targets, "single-label")
    best = minimize_scalar(
        lambda t: float(F.cross_entropy(torch.from_numpy(logits[5:]) / np.exp(t), labels[5:])),
        bounds=(-3, 3),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert fitted == pytest.approx(np.exp(best.x), rel=1e-5)
    assert fitted == pytest.approx(2, rel=0.1)


def test_nothing_to_learn_from_gives_1_and_perfect_separation_stops_at_the_bound() -> None:
    assert fit_temperature(np.ones((3, 2)), np.full((3, 2), -1)) == 1
    assert fit_temperature(np.ones((3, 2)), np.zeros((3, 2)), "single-label") == 1
    assert fit_temperature(np.zeros((3, 2)), np.ones((3, 2))) == 1
    separated = np.array([[5.0], [-5.0]])
    assert fit_temperature(separated, np.array([[1], [0]])) == pytest.approx(0.05)
    assert fit_temperature(separated, np.array([[0], [1]])) == pytest.approx(20)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 20))
def test_a_temperature_never_changes_map(seed: int, temperature: float) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (40, 3))
    targets = generator.integers(-1, 2, (40, 3))
    targets[0] = 1
    scores = 1 / (1 + np.exp(-logits / temperature))
    distinct = all(len(np.unique(scores[:, n])) == 40 for n in range(3))  # sigmoids of large values round to 1
    if distinct:
        assert mean_average_precision(scores, targets) == mean_average_precision(logits, targets)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 20))
def test_ece_is_torchmetrics(seed: int, bins: int) -> None:
    """A binary problem: torchmetrics' confidence is that of class 1 as well. Scores in the middle of fine cells, as the
    two put a score that lies on the border of two bins into different ones."""
    generator = np.random.default_rng(seed)
    scores = (generator.integers(0, 9973, (60, 2)) + 0.5) / 9973
    targets = generator.integers(-1, 2, (60, 2))
    targets[0] = 1
    known = targets >= 0
    expected = binary_calibration_error(
        torch.from_numpy(scores[known]), torch.from_numpy(targets[known]), n_bins=bins, norm="l1"
    )
    assert expected_calibration_error(scores, targets, bins) == pytest.approx(float(expected), abs=1e-6)


def test_ece_edges() -> None:
    assert expected_calibration_error(np.array([[1.0, 0.0]]), np.array([[1, 0]])) == 0
    assert np.isnan(expected_calibration_error(np.array([[0.3]]), np.array([[-1]])))
    with pytest.raises(LabelwiseError, match="probabilities, not logits"):
        expected_calibration_error(np.array([[3.0]]), np.array([[1]]))
