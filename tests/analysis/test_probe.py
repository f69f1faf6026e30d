"""The per-label baseline against scikit-learn, fitted label by label."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from labelwise.analysis.transfer import DECAYS, fit_probes, logistic_regression
from labelwise.metrics import average_precision


def made(images: int = 300, features: int = 12, labels: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(seed)
    inputs = generator.normal(0, 1, (images, features))
    truth = inputs @ generator.normal(0, 1, (features, labels)) + generator.normal(0, 1.5, (images, labels)) > 0.5
    targets = truth.astype(np.int8)
    targets[generator.random(targets.shape) < 0.1] = -1
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def test_together_gives_what_each_label_alone_gives() -> None:
    inputs, targets = made()
    decays = torch.tensor([1e-3, 1e-2, 1e-1], dtype=torch.float64)
    weights, bias = logistic_regression(inputs, targets, decays)
    for label, decay in enumerate(decays.tolist()):
        known = (targets[:, label] >= 0).numpy()
        reference = LogisticRegression(C=1 / (decay * known.sum()), tol=1e-10, max_iter=5000)  # mean loss + decay / 2
        reference.fit(inputs.numpy()[known], targets[:, label].numpy()[known])
        np.testing.assert_allclose(weights[:, label], reference.coef_[0], atol=2e-4)
        assert float(bias[label]) == pytest.approx(reference.intercept_[0], abs=2e-4)


def test_labels_do_not_touch_each_other() -> None:
    inputs, targets = made(seed=1)
    alone = fit_probes(inputs, targets[:, :1]).logits(inputs)
    together = fit_probes(inputs, targets).logits(inputs)
    np.testing.assert_allclose(together[:, 0], alone[:, 0], atol=1e-3)


def test_the_penalty_is_chosen_by_what_was_held_out() -> None:
    """100 images, 90 useless features: a weak penalty learns them by heart, and must not be chosen."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(100, 91, generator=generator, dtype=torch.float64)
    targets = (features[:, :1] + 0.5 * torch.randn(100, 1, generator=generator) > 0).to(torch.int8)
    fresh = torch.randn(2000, 91, generator=generator, dtype=torch.float64)
    wanted = (fresh[:, :1] > 0).to(torch.int8)
    chosen = float(average_precision(fit_probes(features, targets).logits(fresh), wanted)[0])
    weakest, bias = logistic_regression(features, targets, torch.tensor(DECAYS[0]))
    by_heart = float(average_precision((fresh @ weakest + bias).numpy(), wanted)[0])
    assert chosen > by_heart + 0.02
