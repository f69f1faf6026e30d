"""A model on a dataset: every metric, how sure each is, and whether the scores can be taken at their word."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from rich.markup import escape
from rich.table import Table

from labelwise.data.images import BadImage
from labelwise.data.labels import labels_not_in, match_labels
from labelwise.data.table import LabelTable
from labelwise.engines.load import full_config
from labelwise.evaluation.bootstrap import Draws, Interval, bootstrap_draws
from labelwise.evaluation.calibration import expected_calibration_error
from labelwise.evaluation.inference import InferenceOptions, TableLogits, predict_logits
from labelwise.evaluation.thresholds import Doubles, logit_thresholds, scores_of
from labelwise.metrics import MultiLabelScores, multilabel_scores
from labelwise.metrics.ranking import Bytes
from labelwise.metrics.summary import percent
from labelwise.model.config import ModelConfig
from labelwise.runtime.tagger import Model

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

    def to_dict(self) -> dict[str, Any]:
        """What `labelwise evaluate --json` writes; metrics, their intervals and ECE as percentages."""
        result = self.scores.to_dict(self.config.labels)
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
    model: Model,
    table: LabelTable,
    *,
    predictions: TableLogits | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    ignore_extra_labels: bool = False,
    **inference: Unpack[InferenceOptions],
) -> Evaluation:
    """Measure `model` on all images of `table` (`table.select("test")` for a split).

    `predictions` are the table's, if they were computed before; otherwise `inference` are options of `predict_logits`.
    `bootstrap` is the number of samples for confidence intervals; 0 leaves them out.
    """
    match_labels(table, model.config.labels, ignore_extra=ignore_extra_labels)  # before the work, not after it
    predictions = predictions or predict_logits(model, table, **inference)
    return measure(
        full_config(model),
        table,
        predictions,
        bootstrap=bootstrap,
        seed=seed,
        ignore_extra_labels=ignore_extra_labels,
    )


def measure(
    config: ModelConfig,
    table: LabelTable,
    predictions: TableLogits,
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


_HEADLINE = ("mAP", "CP", "CR", "CF1", "OP", "OR", "OF1")
_LABELS_SHOWN = 100


def headline_table(result: dict[str, Any]) -> Table:
    confidence = result["confidence"]
    title = f"percent, with {confidence['level']:.0f} % intervals of {confidence['samples']:,} samples"
    table = Table("", title=title if confidence["samples"] else "percent", box=None, title_justify="left")
    kinds = [("at thresholds", "")] + [(f"top {k}", f"_top{k}") for k in (1, 3, 5) if f"CP_top{k}" in result]
    has_accuracy = result["model"]["task"] == "single-label"
    for kind, _ in kinds:
        table.add_column(kind, justify="right")
    for name in (*_HEADLINE, *(["accuracy"] if has_accuracy else [])):
        cells = [
            f"{_number(result[name + suffix])} {_interval(confidence.get(name + suffix))}".strip()
            if name + suffix in result
            else ""
            for _, suffix in kinds
        ]
        table.add_row(name, *cells)
    return table


def label_table(result: dict[str, Any]) -> Table:
    table = Table("label", box=None)
    counts = ["positives", "predicted", *(["known"] if result["unknown_entries"] else [])]
    for column in ("AP", "precision", "recall", "F1", "threshold", *counts):
        table.add_column(column, justify="right", no_wrap=True)
    rows = result["per_label"]
    if len(rows) > _LABELS_SHOWN:
        ranked = sorted(rows, key=lambda row: -1.0 if row["AP"] is None else row["AP"], reverse=True)
        rows = ranked[: _LABELS_SHOWN // 2] + ranked[-_LABELS_SHOWN // 2 :]
        table.caption = f"the {_LABELS_SHOWN // 2} best and worst of {len(ranked):,} by AP; --json has all"
    for row in rows:
        percentages = [_number(row[name]) for name in ("AP", "precision", "recall", "F1")]
        table.add_row(
            escape(row["label"]), *percentages, f"{row['threshold']:.3f}", *(f"{row[name]:,}" for name in counts)
        )
    return table


def notes(result: dict[str, Any]) -> Iterator[str]:
    """What the numbers rest on, as far as it is not plain: calibration, what was left out, skipped pictures."""
    ece = result["ece"]
    calibration = f"ECE {_number(ece['before'])} without calibration"
    if result["temperature"] != 1 or result["offset"]:
        calibration += f", {_number(ece['after'])} with the model's"
    yield calibration
    for count, text in (
        (result["labels_without_positives"], "labels without a known positive, left out of mAP, CP and CR"),
        (result["labels_never_predicted"], "labels that are never predicted, precision 0 in CP"),
        (len(result["labels_not_in_data"]), "labels of the model that the data lacks, unknown in every image"),
        (len(result["labels_ignored"]), "labels of the data that the model lacks, ignored"),
        (result["unknown_entries"], "unknown values, counted nowhere"),
        (len(result["bad_images"]), "images that cannot be decoded, skipped"),
    ):
        if count:
            yield f"{text}: {count:,}"
    for bad in result["bad_images"][:5]:
        yield f"  {bad['path']} ({bad['reason']})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _interval(bounds: list[float] | None) -> str:
    return "" if bounds is None else f"({bounds[0]:.1f} to {bounds[1]:.1f})"
