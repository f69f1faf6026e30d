"""Multi-label metrics. Pure functions on scores [M, N] and targets [M, N] in {1, 0, -1}; a streaming class on top.

All values are fractions from 0 to 1; `MultiLabelScores.to_dict()` gives the percentages that reports show.
"""

from labelwise.metrics.conventions import check_conventions, list_conventions, scores_as
from labelwise.metrics.precision_recall import (
    PrecisionRecall,
    f1_at_k,
    precision_recall,
    top_k_accuracy,
    top_k_precision_recall,
)
from labelwise.metrics.ranking import average_precision, mean_average_precision
from labelwise.metrics.streaming import MultiLabelMetrics
from labelwise.metrics.summary import MultiLabelScores, multilabel_scores

__all__ = [
    "MultiLabelMetrics",
    "MultiLabelScores",
    "PrecisionRecall",
    "average_precision",
    "check_conventions",
    "f1_at_k",
    "list_conventions",
    "mean_average_precision",
    "multilabel_scores",
    "precision_recall",
    "scores_as",
    "top_k_accuracy",
    "top_k_precision_recall",
]
