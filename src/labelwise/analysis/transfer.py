"""Negative transfer: labels on which a joint model is worse than a model of that label alone (HSQ section 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from labelwise.analysis.comparison import difference_rows, label_differences
from labelwise.analysis.measured import MeasuredRun
from labelwise.core.arrays import Doubles
from labelwise.core.errors import LabelwiseError, counted
from labelwise.core.progress import progress_of
from labelwise.data.stream_table import AnyTable
from labelwise.evaluation import Difference, bootstrap_draws, match_labels, paired_difference
from labelwise.features import FeatureCache
from labelwise.metrics import average_precision
from labelwise.training.display import Display
from labelwise.training.run import Run
from labelwise.training.tables import open_tables

DECAYS = (1e-4, 1e-3, 1e-2, 1e-1)  # strengths of the penalty; the best is chosen per label
_HELD_OUT = 5  # every fifth training image is held out to choose the penalty
_TRIAL_STEPS = 60  # of the fits that only choose: AP converges long before the weights
_BATCH = 64


def fit_probes(features: Tensor, targets: Tensor) -> Probes:
    """One logistic regression per label from features [M, C] and targets [M, N] in {1, 0, -1}.

    Each label's penalty is the one with the best average precision on held-out images (every fifth); the final fit uses
    all images. Unknown entries do not count. Nothing is random.
    """
    if not len(features):
        raise LabelwiseError("there are no images to fit the per-label baseline on")
    mean, deviation = features.mean(dim=0), features.std(dim=0, correction=0).clamp_min(1e-6)
    inputs = (features - mean) / deviation
    held_out = torch.arange(len(inputs)) % _HELD_OUT == 0
    quality = []
    for decay in DECAYS:
        weights, bias = logistic_regression(
            inputs[~held_out], targets[~held_out], torch.tensor(decay), steps=_TRIAL_STEPS
        )
        quality.append(average_precision(inputs[held_out] @ weights + bias, targets[held_out]))
    best = torch.stack(quality).nan_to_num(-1).argmax(dim=0)  # [N]
    weights, bias = logistic_regression(inputs, targets, torch.tensor(DECAYS)[best])
    return Probes(weights, bias, mean, deviation)


@dataclass(frozen=True)
class Probes:
    """Logistic regressions on standardised features."""

    weights: Tensor  # [C, N]
    bias: Tensor  # [N]
    mean: Tensor  # [C], of the features
    deviation: Tensor  # [C]

    def logits(self, features: Tensor) -> np.ndarray:
        """[M, C] -> [M, N]"""
        out: np.ndarray = ((features - self.mean) / self.deviation @ self.weights + self.bias).numpy()
        return out


def logistic_regression(inputs: Tensor, targets: Tensor, decay: Tensor, steps: int = 200) -> tuple[Tensor, Tensor]:
    """Weights [C, N] and biases [N] that minimise, for each label, the mean cross-entropy over its known images plus
    decay / 2 x the sum of its squared weights. `decay`: one for all labels, or [N].

    The problems share no parameters and each has one minimum, so solving them together equals N separate fits.
    """
    known = (targets >= 0).to(inputs.dtype)  # [M, N]
    share = known / known.sum(dim=0).clamp_min(1)
    wanted = (targets == 1).to(inputs.dtype)
    weights = torch.zeros(inputs.shape[1], targets.shape[1], dtype=inputs.dtype, requires_grad=True)
    bias = torch.zeros(targets.shape[1], dtype=inputs.dtype, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weights, bias], max_iter=steps, history_size=20, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        entropy = F.binary_cross_entropy_with_logits(inputs @ weights + bias, wanted, reduction="none")
        loss = (entropy * share).sum() + (decay / 2 * weights.square().sum(dim=0)).sum()
        loss.backward()
        return loss

    solver.step(closure)
    return weights.detach(), bias.detach()


@dataclass(frozen=True, eq=False)
class Transfer:
    """The joint model minus the per-label baseline, for each label."""

    baseline: Doubles  # [N] average precision of the baseline, fractions
    differences: list[Difference]  # N
    significant: list[bool]  # N, by `benjamini_hochberg`
    mean: Difference  # of the mAPs
    training_images: int

    @property
    def hurt(self) -> list[int]:
        """Labels with negative transfer: significantly worse than alone."""
        return [n for n, d in enumerate(self.differences) if self.significant[n] and d.value < 0]

    def to_dict(self, labels: tuple[str, ...]) -> dict[str, Any]:
        rows = difference_rows(labels, self.differences, self.significant)
        return {
            "training_images": self.training_images,
            "labels": [
                {"label": row.pop("label"), "baseline_AP": None if np.isnan(ap) else 100 * float(ap), **row}
                for ap, row in zip(self.baseline, rows, strict=True)
            ],
        }


def negative_transfer(
    measured: MeasuredRun, *, samples: int = 1000, workers: int = 0, progress: bool = True
) -> Transfer:
    """Compare a run with one logistic regression per label on the same frozen backbone's average-pooled features,
    fitted on the run's own training images: it can neither gain nor lose from other labels."""
    run = measured.run
    if run.recipe is None or not run.frozen:
        raise LabelwiseError(f"{run.name}: the per-label baseline needs a run that was trained with a frozen backbone")
    train, _ = open_tables(run.recipe, Display(None), run=run.folder)
    model = run.model()
    fit_features, fit_rows = _pooled(train, model, run, workers, progress)
    fit_targets = match_labels(train, measured.labels, ignore_extra=True).targets(fit_rows)
    probes = fit_probes(fit_features, torch.from_numpy(fit_targets))
    features, rows = _pooled(measured.table, model, run, workers, progress)
    if len(rows) != len(measured.table):
        missing = counted(len(measured.table) - len(rows), "image is", "images are")
        raise LabelwiseError(f"{missing} missing; the baseline needs all of them")
    return compare_with_baseline(measured, probes.logits(features), len(fit_rows), samples)


def compare_with_baseline(measured: MeasuredRun, logits: np.ndarray, images: int, samples: int) -> Transfer:
    """`logits` [M, N] are the baseline's."""
    targets, ours = measured.targets, measured.average_precision
    theirs = average_precision(logits, targets).numpy()
    draws = measured.evaluation.draws or bootstrap_draws(measured.values, targets, samples=samples)
    count = draws.average_precision.shape[1]
    other = bootstrap_draws(logits, targets, samples=count)  # the same seed: the same images
    differences, significant = label_differences(ours - theirs, draws, other)
    mean = paired_difference(float(np.nanmean(ours - theirs)), draws.metrics["mAP"], other.metrics["mAP"])
    return Transfer(theirs, differences, significant, mean, images)


def _pooled(table: AnyTable, model: Any, run: Run, workers: int, progress: bool) -> tuple[Tensor, np.ndarray]:
    """Average-pooled features [m, C] of the images that can be decoded, and their rows [m]."""
    reading: dict[str, Any] = {"workers": workers, "on_bad_image": "skip", "progress": progress, "engine": "auto"}
    cache = FeatureCache.build(table, model.backbone, run.config.preprocessing, flips=False, **reading)
    pooled = []
    with progress_of("Pooling features", len(cache.rows), progress) as advance:
        for rows in torch.as_tensor(cache.rows).split(_BATCH):
            pooled.append(cache.batch(rows).mean(dim=(2, 3)))
            advance(len(rows))
    return torch.cat(pooled), cache.rows
