"""Negative transfer: labels that a joint model does worse than a model of that label alone (HSQ section 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.data.table import LabelTable
from labelwise.errors import LabelwiseError
from labelwise.evaluation import Difference, bootstrap_draws, discoveries, match_labels, paired_difference
from labelwise.evaluation.fit import Doubles
from labelwise.features import FeatureCache
from labelwise.features.progress import progress_of
from labelwise.insight.compare import difference_as_dict
from labelwise.insight.measured import MeasuredRun
from labelwise.insight.probe import fit_probes
from labelwise.insight.run import Run
from labelwise.metrics import average_precision

_BATCH = 64


@dataclass(frozen=True, eq=False)
class Transfer:
    """The joint model minus the per-label baseline, label by label."""

    baseline: Doubles  # [N] average precision of the baseline, fractions
    differences: list[Difference]  # N
    real: list[bool]  # N: not luck (`evaluation.discoveries`)
    mean: Difference  # of the mAPs
    training_images: int

    @property
    def hurt(self) -> list[int]:
        """Labels with negative transfer: worse, and not by luck."""
        return [n for n, (d, real) in enumerate(zip(self.differences, self.real, strict=True)) if real and d.value < 0]

    def as_dict(self, labels: tuple[str, ...]) -> dict[str, Any]:
        return {
            "training_images": self.training_images,
            "labels": [
                {
                    "label": label,
                    "baseline_AP": None if np.isnan(ap) else 100 * float(ap),
                    **difference_as_dict(d),
                    "real": real,
                }
                for label, ap, d, real in zip(labels, self.baseline, self.differences, self.real, strict=True)
            ],
        }


def negative_transfer(
    measured: MeasuredRun, *, samples: int = 1000, workers: int = 2, progress: bool = True
) -> Transfer:
    """Against one logistic regression for each label on the same frozen backbone's average-pooled features, fitted on
    the run's own training images: it can neither gain from other labels nor suffer from them."""
    from labelwise.model import load_model
    from labelwise.training.display import Display
    from labelwise.training.tables import open_tables

    run = measured.run
    if run.recipe is None or not run.frozen:
        raise LabelwiseError(
            f"{run.name}: the per-label baseline needs a run that was trained on a frozen backbone; "
            "leave out --per-label-baseline, or train with --set model.freeze=backbone"
        )
    train, _ = open_tables(run.recipe, Display(None), run=run.folder)
    model = load_model(run.model)
    fit_features, fit_rows = _pooled(train, model, run, workers, progress)
    fit_targets = match_labels(train, measured.labels, ignore_extra=True).targets(fit_rows)
    probes = fit_probes(fit_features, torch.from_numpy(fit_targets))
    features, rows = _pooled(measured.table, model, run, workers, progress)
    if len(rows) != len(measured.table):
        raise LabelwiseError(f"{len(measured.table) - len(rows)} pictures have gone: the baseline needs all of them")
    return compare_with_baseline(measured, probes.logits(features), len(fit_rows), samples)


def compare_with_baseline(measured: MeasuredRun, logits: np.ndarray, images: int, samples: int) -> Transfer:
    """`logits` [M, N] are the baseline's."""
    targets, ours = measured.targets, measured.average_precision
    theirs = average_precision(logits, targets).numpy()
    draws = measured.evaluation.draws or bootstrap_draws(measured.values, targets, samples=samples)
    count = draws.average_precision.shape[1]
    other = bootstrap_draws(logits, targets, samples=count)  # the same seed: the same images
    differences = [
        paired_difference(float(ours[n] - theirs[n]), draws.average_precision[n], other.average_precision[n])
        for n in range(len(ours))
    ]
    mean = paired_difference(float(np.nanmean(ours - theirs)), draws.metrics["mAP"], other.metrics["mAP"])
    real = discoveries(np.array([difference.p for difference in differences])).tolist()
    return Transfer(theirs, differences, real, mean, images)


def _pooled(table: LabelTable, model: Any, run: Run, workers: int, progress: bool) -> tuple[Tensor, np.ndarray]:
    """Average-pooled features [m, C] of the images that can be decoded, and their rows [m]."""
    cache = FeatureCache.build(
        table,
        model.backbone,
        run.config.preprocessing,
        flips=False,
        workers=workers,
        on_bad_image="skip",
        progress=progress,
    )
    pooled = []
    with progress_of("Pooling features", len(cache.rows), progress) as advance:
        for rows in torch.as_tensor(cache.rows).split(_BATCH):
            pooled.append(cache.batch(rows).mean(dim=(2, 3)))
            advance(len(rows))
    return torch.cat(pooled), cache.rows
