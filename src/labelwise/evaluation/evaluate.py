"""A model on a dataset: every metric, how sure each is, and whether the scores can be taken at their word."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from labelwise.data.images import BadImage
from labelwise.data.table import LabelTable
from labelwise.evaluation.bootstrap import Draws, Interval, bootstrap_draws
from labelwise.evaluation.calibration import expected_calibration_error
from labelwise.evaluation.fit import Doubles, logit_thresholds, scores_of
from labelwise.evaluation.inference import InferenceOptions, Predictions, predict_logits
from labelwise.evaluation.labels import labels_not_in, match_labels
from labelwise.export.model import ExportedModel
from labelwise.metrics import MultiLabelScores, multilabel_scores
from labelwise.metrics.inputs import Bytes
from labelwise.metrics.summary import percent
from labelwise.model import LabelModel
from labelwise.model_config import ModelConfig

LEVEL = 0.95  # of the confidence intervals
_TOP_K = {"multi-label": (3,), "single-label": (1, 3, 5)}


@dataclass(frozen=True)
class Evaluation:
    scores: MultiLabelScores
    config: ModelConfig  # with the calibration and thresholds that were used
    confidence: dict[str, Interval]  # fractions; empty if no samples were drawn
    samples: int
    ece_before: float  # fractions: of the plain sigmoids (softmax) of the logits ...
    ece_after: float  # ... and at the model's
    bad_images: tuple[BadImage, ...]
    labels_not_in_data: tuple[str, ...]  # unknown in every image
    labels_ignored: tuple[str, ...]  # of the data: the model has no such label
    data: str
    draws: Draws | None = None  # the samples behind `confidence`: what a paired comparison subtracts

    def as_dict(self) -> dict[str, Any]:
        """What `labelwise evaluate --json` writes; metrics, their intervals and ECE as percentages."""
        result = self.scores.as_dict(self.config.labels)
        for row, threshold in zip(result["per_label"], self.config.limits, strict=True):
            row["threshold"] = threshold
        confidence = {
            name: None if math.isnan(interval.low) else [100 * interval.low, 100 * interval.high]
            for name, interval in self.confidence.items()
        }
        return result | {
            "confidence": {"level": 100 * LEVEL, "samples": self.samples, **confidence},
            "temperature": self.config.temperature,
            "offset": self.config.offset,
            "ece": {"before": percent(self.ece_before), "after": percent(self.ece_after)},
            "bad_images": [{"path": bad.path, "reason": bad.reason} for bad in self.bad_images],
            "labels_not_in_data": list(self.labels_not_in_data),
            "labels_ignored": list(self.labels_ignored),
            "model": describe_model(self.config),
            "data": {"source": self.data},
        }


def describe_model(config: ModelConfig) -> dict[str, Any]:
    return {
        "backbone": config.backbone.name,
        "head": config.head.kind,
        "size": config.preprocessing.size,
        "task": config.task,
    }


def evaluate(
    model: LabelModel | ExportedModel,
    table: LabelTable,
    *,
    predictions: Predictions | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    ignore_extra_labels: bool = False,
    **inference: Unpack[InferenceOptions],
) -> Evaluation:
    """Measure `model` on all images of `table` (`table.select("test")` for a split).

    `predictions` are the table's, if they were computed before; otherwise `inference` are options of `predict_logits`.
    `bootstrap` is the number of samples for confidence intervals; 0 leaves them out.
    """
    match_labels(table, model.labels, ignore_extra=ignore_extra_labels)  # before the work, not after it
    predictions = predictions or predict_logits(model, table, **inference)
    return measure(
        model.config,
        table,
        predictions,
        bootstrap=bootstrap,
        seed=seed,
        ignore_extra_labels=ignore_extra_labels,
    )


def measure(
    config: ModelConfig,
    table: LabelTable,
    predictions: Predictions,
    *,
    bootstrap: int = 1000,
    seed: int = 0,
    ignore_extra_labels: bool = False,
) -> Evaluation:
    """`evaluate` for predictions of `table` that are there already: the model itself is not needed."""
    matched = match_labels(table, config.labels, ignore_extra=ignore_extra_labels)
    targets = matched.targets(predictions.rows)  # [m, N]
    probabilities = scores_of(config, predictions.logits)
    # Ranking metrics of independent labels come from the logits: sigmoids of sure predictions round to ties.
    by_logit = config.task == "multi-label"
    values = predictions.logits if by_logit else probabilities
    thresholds = logit_thresholds(config) if by_logit else np.array(config.limits)
    top_k = _TOP_K[config.task]
    draws = None
    if bootstrap:
        draws = bootstrap_draws(values, targets, thresholds=thresholds, top_k=top_k, samples=bootstrap, seed=seed)
    uncalibrated = scores_of(config.model_copy(update={"temperature": 1.0, "offset": 0.0}), predictions.logits)
    return Evaluation(
        scores=multilabel_scores(values, targets, thresholds=thresholds, top_k=top_k),
        config=config,
        confidence=draws.intervals(LEVEL) if draws else {},
        samples=bootstrap,
        ece_before=_calibration_error(config, uncalibrated, targets),
        ece_after=_calibration_error(config, probabilities, targets),
        bad_images=predictions.bad_images,
        labels_not_in_data=tuple(labels_not_in(table.labels, config.labels)),
        labels_ignored=tuple(labels_not_in(config.labels, table.labels)),
        data=table.source,
        draws=draws,
    )


def _calibration_error(config: ModelConfig, probabilities: Doubles, targets: Bytes) -> float:
    """Over all known entries; of a single-label model, the usual one: its best label's score against being right."""
    if config.task == "multi-label":
        return expected_calibration_error(probabilities, targets)
    best = probabilities.argmax(axis=1)[:, None]  # [M, 1]
    right = np.take_along_axis(targets, best, axis=1)
    right[~(targets == 1).any(axis=1)] = -1  # nobody knows
    return expected_calibration_error(np.take_along_axis(probabilities, best, axis=1), right)
