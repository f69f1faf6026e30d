"""Measure a model on a table: every metric with a confidence interval, and the calibration of its scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from labelwise.core.arrays import Doubles, Targets
from labelwise.core.tables import to_frame
from labelwise.data.images import BadImage
from labelwise.data.labels import labels_not_in, match_labels, respelt
from labelwise.data.stream_table import AnyTable
from labelwise.engines.load import full_config
from labelwise.evaluation.bootstrap import Draws, Interval, bootstrap_draws
from labelwise.evaluation.calibration import expected_calibration_error
from labelwise.evaluation.inference import InferenceOptions, TableLogits, predict_logits
from labelwise.evaluation.tables import as_html, as_text
from labelwise.metrics import MultiLabelScores, multilabel_scores, scores_as
from labelwise.metrics.summary import percent
from labelwise.model.config import ModelConfig
from labelwise.runtime.prediction import decide, probabilities, ranking_values
from labelwise.runtime.tagger import Model

if TYPE_CHECKING:
    import pandas

LEVEL = 0.95  # of the confidence intervals
_PUBLISHED = ("mAP", "CF1", "OF1", "CF1_top3", "OF1_top3")  # what tables in papers print
_TOO_MANY = 2  # times as many labels predicted as there are
_TOP_K = {"multi-label": (3,), "single-label": (1, 3, 5)}


@dataclass(frozen=True, repr=False, kw_only=True)
class MeasuredModel:
    """What every evaluation knows. Printing it shows the headline metrics, in percent.

    Attributes:
        config: The model's config, with the calibration and thresholds that were used.
        samples: How many random halves of the images were drawn for the intervals.
        bad_images: Images that could not be decoded.
        labels_ignored: Labels of the data that the model was not asked about.
        data: Where the table came from.
        model: What was measured, for people.
        split: The images that were measured on, for people.
        test_time: Test-time augmentation that was used.
    """

    config: ModelConfig
    samples: int
    bad_images: tuple[BadImage, ...]
    labels_ignored: tuple[str, ...]
    data: str
    model: str = ""
    split: str = ""
    test_time: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON; metrics, intervals and ECE as percentages."""
        config = self.config
        described = {
            "backbone": config.backbone.name,
            "head": config.head.kind,
            "size": config.preprocessing.size,
            "task": config.task,
        }
        return {
            "bad_images": [{"path": bad.path, "reason": bad.reason} for bad in self.bad_images],
            "labels_ignored": list(self.labels_ignored),
            "model": ({"source": self.model} if self.model else {}) | described,
            "data": {"source": self.data} | ({"split": self.split} if self.split else {}),
        } | ({} if self.test_time is None else {"test_time": self.test_time})

    def to_pandas(self) -> pandas.DataFrame:
        """A frame with one row per label: its metrics in percent, its counts and its threshold, if it has one."""
        return to_frame(self.to_dict()["per_label"], "label")

    def __repr__(self) -> str:
        return as_text(self.to_dict())

    def _repr_html_(self) -> str:
        return as_html(self.to_dict())


@dataclass(frozen=True, repr=False, kw_only=True)
class Evaluation(MeasuredModel):
    """A model measured on the images of a table. Printing it shows the headline metrics, in percent.

    Attributes:
        scores: All metrics as fractions, and the counts they rest on.
        confidence: An interval per metric, as fractions; empty without samples.
        ece_before: Expected calibration error of the uncalibrated scores, as a fraction.
        ece_after: The same with the model's temperature and offset.
        labels_not_in_data: Labels of the model that the data does not have: unknown in every image.
        draws: The samples; a paired comparison subtracts them.
        fitted: What was fitted for this evaluation, and on which split.
        conventions: All metrics as other lines of work compute them, by their names (`metrics.scores_as`): at 0.5 on
            uncalibrated scores.

    Example:
        >>> evaluation = lw.evaluate("runs/first", "photos.csv", split="test")  # doctest: +SKIP
        >>> evaluation.scores.mAP, evaluation.to_pandas().sort_values("AP")  # doctest: +SKIP
    """

    scores: MultiLabelScores
    confidence: dict[str, Interval]
    ece_before: float
    ece_after: float
    labels_not_in_data: tuple[str, ...]
    draws: Draws | None = None
    fitted: dict[str, Any] | None = None
    conventions: dict[str, MultiLabelScores] = field(default_factory=dict)

    @property
    def too_many_labels(self) -> str:
        """A warning if far more labels are predicted than there are, as after too few epochs; "" otherwise."""
        tally, images = self.scores.tally, max(1, self.scores.images)
        predicted, present = tally.by_threshold.predicted.sum() / images, tally.positives.sum() / images
        if self.config.task == "single-label" or predicted < _TOO_MANY * present or not present:
            return ""
        return (
            f"{predicted:.1f} labels are predicted per image, but images have {present:.1f} on average: train for more "
            "epochs, or fit the thresholds on more validation images"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON; metrics, intervals and ECE as percentages."""
        result = self.scores.to_dict(self.config.labels)
        for row, threshold in zip(result["per_label"], self.config.label_thresholds, strict=True):
            row["threshold"] = threshold
        confidence = {
            name: None if math.isnan(interval.low) else [100 * interval.low, 100 * interval.high]
            for name, interval in self.confidence.items()
        }
        result |= {
            "confidence": {"level": 100 * LEVEL, "samples": self.samples, **confidence},
            "temperature": self.config.temperature,
            "offset": self.config.offset,
            "ece": {"before": percent(self.ece_before), "after": percent(self.ece_after)},
            "labels_not_in_data": list(self.labels_not_in_data),
        }
        result |= super().to_dict() | ({} if self.fitted is None else {"fitted": self.fitted})
        if self.conventions:
            every = {name: scores.to_dict() for name, scores in self.conventions.items()}
            result["conventions"] = {name: {key: row[key] for key in _PUBLISHED} for name, row in every.items()}
        return result


def evaluate(
    model: Model,
    table: AnyTable,
    *,
    predictions: TableLogits | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    ignore_extra_labels: bool = False,
    **inference: Unpack[InferenceOptions],
) -> Evaluation:
    """Measure a model on all images of a table.

    Args:
        model: A model in memory, optimised or exported.
        table: The images with their labels; `table.select("test")` for a split.
        predictions: The table's logits, if they were computed before (`predict_logits`).
        bootstrap: Samples for the confidence intervals; 0 for none.
        seed: Seed of the samples; models measured with the same seed can be compared in pairs.
        ignore_extra_labels: Leave out labels of the data that the model does not have.
        **inference: Options of `predict_logits`, such as `batch_size`, `workers` and `flip`.

    Example:
        >>> evaluate(run.model(), open_data("photos.csv").select("test"))  # doctest: +SKIP
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
    table: AnyTable,
    predictions: TableLogits,
    *,
    bootstrap: int = 1000,
    seed: int = 0,
    ignore_extra_labels: bool = False,
    conventions: Sequence[str] = (),
) -> Evaluation:
    """`evaluate` for predictions of `table` that are there already: the model itself is not needed."""
    table = respelt(table, config.labels)
    matched = match_labels(table, config.labels, ignore_extra=ignore_extra_labels)
    targets = matched.targets(predictions.rows)  # [m, N]
    scores = probabilities(predictions.logits, config)
    predicted = decide(scores, config)
    values = ranking_values(predictions.logits, config)
    top_k = _TOP_K[config.task]
    draws = None
    if bootstrap:
        draws = bootstrap_draws(values, targets, predicted=predicted, top_k=top_k, samples=bootstrap, seed=seed)
    plain = config.model_copy(update={"temperature": 1.0, "offset": 0.0})
    return Evaluation(
        scores=multilabel_scores(values, targets, predicted=predicted, top_k=top_k),
        config=config,
        confidence=draws.intervals(LEVEL) if draws else {},
        samples=bootstrap,
        ece_before=_calibration_error(config, probabilities(predictions.logits, plain), targets),
        ece_after=_calibration_error(config, scores, targets),
        bad_images=predictions.bad_images,
        labels_not_in_data=tuple(labels_not_in(table.labels, config.labels)),
        labels_ignored=tuple(labels_not_in(config.labels, table.labels)),
        data=table.source,
        draws=draws,
        conventions={name: scores_as(name, predictions.logits, targets, thresholds=0.0) for name in conventions},
    )


def _calibration_error(config: ModelConfig, scores: Doubles, targets: Targets) -> float:
    """Over all known entries; of a single-label model, the usual one: its best label's score against being right."""
    if config.task == "multi-label":
        return expected_calibration_error(scores, targets)
    best = scores.argmax(axis=1)[:, None]  # [M, 1]
    right = np.take_along_axis(targets, best, axis=1)
    right[~(targets == 1).any(axis=1)] = -1  # nobody knows
    return expected_calibration_error(np.take_along_axis(scores, best, axis=1), right)
