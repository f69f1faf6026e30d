"""Evaluation: predictions over a dataset, metrics with confidence intervals, thresholds and calibration."""

from labelwise.data.labels import match_labels
from labelwise.evaluation.bootstrap import (
    Difference,
    Draws,
    Interval,
    benjamini_hochberg,
    bootstrap_draws,
    bootstrap_intervals,
    paired_difference,
)
from labelwise.evaluation.calibration import expected_calibration_error, fit_platt, fit_temperature
from labelwise.evaluation.evaluate import Evaluation, evaluate, measure
from labelwise.evaluation.inference import TableLogits, predict_logits
from labelwise.evaluation.thresholds import Fit, ThresholdFit, fit_config, fit_thresholds, threshold_fit

__all__ = [
    "Difference",
    "Draws",
    "Evaluation",
    "Fit",
    "Interval",
    "TableLogits",
    "ThresholdFit",
    "benjamini_hochberg",
    "bootstrap_draws",
    "bootstrap_intervals",
    "evaluate",
    "expected_calibration_error",
    "fit_config",
    "fit_platt",
    "fit_temperature",
    "fit_thresholds",
    "match_labels",
    "measure",
    "paired_difference",
    "predict_logits",
    "threshold_fit",
]
