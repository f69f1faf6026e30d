"""What is fitted on validation data after training and travels in the model's config: calibration and thresholds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from labelwise.errors import LabelwiseError
from labelwise.evaluation.calibration import fit_platt, fit_temperature
from labelwise.evaluation.thresholds import parse_rule, threshold_fit
from labelwise.metrics.inputs import Bytes
from labelwise.model_config import ModelConfig

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    config: ModelConfig  # with the new temperature, offset and thresholds
    fallback_labels: tuple[str, ...]  # whose threshold is the others' median, for want of evidence


def fit_config(
    config: ModelConfig,
    logits: NDArray[np.float32],
    targets: Bytes,
    *,
    thresholds: str | None = None,
    temperature: bool = False,
) -> Fit:
    """Fit what is asked for on logits [M, N] and targets [M, N]; `thresholds` is a rule: f1, precision=0.9, recall=0.8.

    `temperature` brings the offset along (docs/evaluation.md). Both come first, because thresholds are scores.
    Thresholds that a model has already and that are not fitted anew are moved along, so that they decide as before.
    """
    fallback: tuple[str, ...] = ()
    if temperature:
        calibrated = _calibrated(config, logits, targets)
        if config.thresholds is not None and thresholds is None:
            moved = _moved_thresholds(config, calibrated)
            calibrated = calibrated.model_copy(update={"thresholds": tuple(moved.tolist())})
        config = calibrated
    if thresholds is not None:
        rule, target = parse_rule(thresholds)
        fit = threshold_fit(scores_of(config, logits), targets, rule, target)
        config = config.model_copy(update={"thresholds": tuple(fit.values.tolist())})
        fallback = tuple(np.array(config.labels, object)[fit.fallback])
    return Fit(config, fallback)


def scores_of(config: ModelConfig, logits: NDArray[np.float32]) -> Doubles:
    """What `LabelModel.scores` gives, in double precision: near 1, single precision makes ties of different scores."""
    z = (torch.from_numpy(logits).double() - config.offset) / config.temperature
    scores: Doubles = (z.sigmoid() if config.task == "multi-label" else z.softmax(dim=1)).numpy()
    return scores


def logit_thresholds(config: ModelConfig) -> Doubles:
    """The logits [N] at which a multi-label model's scores reach their thresholds: T log(t / (1 - t)) + b.

    >>> from labelwise.backbones import BackboneConfig
    >>> from labelwise.heads.config import GapConfig
    >>> from labelwise.preprocessing import Preprocessing
    >>> parts = {"backbone": BackboneConfig(name="resnet10t"), "head": GapConfig(), "preprocessing": Preprocessing()}
    >>> config = ModelConfig(**parts, labels=("cat", "dog"), temperature=2.0, thresholds=(0.5, 0.75))
    >>> logit_thresholds(config).round(4).tolist()
    [0.0, 2.1972]
    """
    # 0 lets everything pass, 1 what rounds to 1.
    t = np.clip(np.array(config.limits), np.finfo(np.float64).tiny, 1 - 2**-53)
    cuts: Doubles = config.temperature * (np.log(t) - np.log1p(-t)) + config.offset
    return cuts


def _calibrated(config: ModelConfig, logits: NDArray[np.float32], targets: Bytes) -> ModelConfig:
    """A softmax does not see an offset; sigmoids need it, where a loss has pushed all logits to one side."""
    if config.task == "single-label":
        return config.model_copy(update={"temperature": fit_temperature(logits, targets, config.task)})
    temperature, offset = fit_platt(logits, targets)
    return config.model_copy(update={"temperature": temperature, "offset": offset})


def _moved_thresholds(config: ModelConfig, calibrated: ModelConfig) -> Doubles:
    if config.task == "single-label":
        raise LabelwiseError(
            "the model's thresholds belong to its old temperature; fit them again, too: add --fit-thresholds f1"
        )
    moved: Doubles = 1 / (1 + np.exp((calibrated.offset - logit_thresholds(config)) / calibrated.temperature))
    return moved
