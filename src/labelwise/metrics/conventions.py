"""Metrics as the public code of each line of papers computes them, to compare with published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labelwise.core.errors import unknown_name
from labelwise.metrics.precision_recall import Tally
from labelwise.metrics.ranking import ArrayLike, Method, average_precision, read_both, read_thresholds
from labelwise.metrics.summary import MultiLabelScores, read_top_ks


@dataclass(frozen=True)
class Convention:
    """What one line of work does differently.

    Attributes:
        used_by: Whose tables are computed this way.
        method: How average precision is read off the precision-recall curve.
        top_k_at_threshold: A label among the k best counts only if it also reaches its threshold. Without it every
            image is given k labels, and a perfect ranker cannot reach a top-3 OF1 of 100.
        labels_need_negative: A label without a known negative is left out of mAP; its AP would be 1 for any model.
        images_need_positive: An image without a known positive is left out of every metric.
    """

    used_by: str
    method: Method = "area"
    top_k_at_threshold: bool = False
    labels_need_negative: bool = False
    images_need_positive: bool = False


CONVENTIONS: dict[str, Convention] = {
    "labelwise": Convention("this library: scikit-learn's average precision, k labels for every image"),
    "ml-gcn": Convention("ML-GCN, ADD-GCN and most COCO tables", top_k_at_threshold=True),
    "query2label": Convention("SSGRL, Query2Label, HSQ", method="interpolated", top_k_at_threshold=True),
    "ml-decoder": Convention("ML-Decoder and ASL on COCO and VOC"),
    "open-images": Convention("ML-Decoder and CSL on Open Images", labels_need_negative=True),
    "nus-wide-zsl": Convention("ML-Decoder's zero-shot tables on NUS-WIDE", images_need_positive=True),
    "voc2007": Convention("the PASCAL VOC 2007 challenge", method="11-point"),
}


def list_conventions() -> list[str]:
    """The names that `scores_as` takes.

    >>> list_conventions()[:3]
    ['labelwise', 'ml-gcn', 'query2label']
    """
    return list(CONVENTIONS)


def check_conventions(names: Sequence[str]) -> None:
    """Raise an error for a name that is not a convention."""
    for name in names:
        if name not in CONVENTIONS:
            raise unknown_name("convention", name, CONVENTIONS)


def scores_as(
    convention: str,
    scores: ArrayLike,
    targets: ArrayLike,
    *,
    thresholds: float | Sequence[float] | ArrayLike = 0.5,
    top_k: int | Sequence[int] = 3,
) -> MultiLabelScores:
    """Every metric as the named line of papers computes it.

    Published tables use a threshold of 0.5 for all labels and uncalibrated scores.

    Args:
        convention: One of `list_conventions()`.
        scores: [M, N].
        targets: [M, N] in {1, 0, -1}; -1 is unknown.
        thresholds: One for all labels, or one per label.
        top_k: One k or several.

    >>> scores = np.array([[0.9, 0.6, 0.4], [0.8, 0.2, 0.1]])
    >>> targets = np.array([[1, 1, 0], [1, 0, 0]])
    >>> [round(scores_as(name, scores, targets, top_k=2).at_top_k[2].OF1, 2) for name in ("labelwise", "ml-gcn")]
    [0.86, 1.0]
    """
    check_conventions([convention])
    chosen = CONVENTIONS[convention]
    values, known = read_both(scores, targets)
    if chosen.images_need_positive:
        relevant = (known == 1).any(axis=1)
        values, known = values[relevant], known[relevant]
    checked = read_thresholds(thresholds, values.shape[1])
    tally = Tally.of(values, known, checked, read_top_ks(top_k), top_k_at_threshold=chosen.top_k_at_threshold)
    precision = average_precision(values, known, chosen.method).numpy()
    if chosen.labels_need_negative:
        precision = np.where((known == 0).any(axis=0), precision, np.nan)
    return MultiLabelScores.from_parts(tally, precision, chosen.method)
