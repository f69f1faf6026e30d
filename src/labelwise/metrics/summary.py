"""All metrics of one evaluation in one result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from labelwise.core.arrays import Doubles, Mask
from labelwise.core.errors import LabelwiseError
from labelwise.metrics.precision_recall import PrecisionRecall, Tally, f1
from labelwise.metrics.ranking import (
    ArrayLike,
    Method,
    average_precision,
    mean_over_labels,
    read_both,
    read_k,
    read_thresholds,
)


@dataclass(frozen=True)
class MultiLabelScores:
    """All metrics as fractions from 0 to 1 (NaN: not defined), with the counts behind them.

    Args:
        mAP: Mean average precision.
        method: How average precision was computed.
        average_precision: Of each label, [N].
        at_thresholds: Precision, recall and F1 of the labels that reach their thresholds.
        at_top_k: The same for each image's k best labels, by k.
        accuracy_at_top_k: The fraction of images with a correct label among their k best ones, by k.
        tally: Counts of images, labels and predictions.
    """

    mAP: float  # noqa: N815 - its usual name
    method: Method
    average_precision: Doubles
    at_thresholds: PrecisionRecall
    at_top_k: dict[int, PrecisionRecall]
    accuracy_at_top_k: dict[int, float]
    tally: Tally

    @classmethod
    def from_parts(cls, tally: Tally, average_precision: Doubles, method: Method) -> Self:
        return cls(
            mAP=mean_over_labels(average_precision),
            method=method,
            average_precision=average_precision,
            at_thresholds=PrecisionRecall.from_counts(tally.by_threshold, tally.positives),
            at_top_k={k: PrecisionRecall.from_counts(tally.by_top_k(k), tally.positives) for k in tally.top_k},
            accuracy_at_top_k={k: tally.accuracy(k) for k in tally.top_k},
            tally=tally,
        )

    @property
    def images(self) -> int:
        return int(self.tally.images[0])

    @property
    def labels(self) -> int:
        return len(self.tally.known)

    @property
    def labels_without_positives(self) -> int:
        """Left out of mAP, CP and CR."""
        return int((self.tally.positives == 0).sum())

    @property
    def labels_never_predicted(self) -> int:
        """By thresholds, of the labels with a positive: each counts as precision 0 in CP."""
        return self.at_thresholds.labels_never_predicted

    @property
    def unknown_entries(self) -> int:
        return self.images * self.labels - int(self.tally.known.sum())

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """What `labelwise evaluate --json` writes: values from 0 to 100, `None` for what is not defined.

        Args:
            names: The labels' names. Default: their numbers.

        >>> result = multilabel_scores([[0.9, 0.6], [0.2, 0.7]], [[1, 0], [1, 1]])
        >>> {key: value for key, value in result.to_dict().items() if key in ("mAP", "CF1", "labels_never_predicted")}
        {'mAP': 100.0, 'CF1': 75.0, 'labels_never_predicted': 0}
        """
        result: dict[str, Any] = {"mAP": percent(self.mAP), "ap_method": self.method}
        result |= _six(self.at_thresholds, "")
        for k, scores in self.at_top_k.items():
            result |= _six(scores, f"_top{k}") | {f"accuracy_top{k}": percent(self.accuracy_at_top_k[k])}
        return result | {
            "images": self.images,
            "labels": self.labels,
            "labels_without_positives": self.labels_without_positives,
            "labels_never_predicted": self.labels_never_predicted,
            "unknown_entries": self.unknown_entries,
            "per_label": self._per_label(names),
        }

    def _per_label(self, names: Sequence[str] | None) -> list[dict[str, Any]]:
        if names is not None and len(names) != self.labels:
            raise LabelwiseError(f"{len(names)} label names for {self.labels} labels; give one per label")
        counts = self.tally.by_threshold
        rows = []
        for label in range(self.labels):
            positives, predicted = int(self.tally.positives[label]), int(counts.predicted[label])
            correct = int(counts.correct[label])
            precision = correct / predicted if predicted else (0.0 if positives else math.nan)  # as in CP
            recall = correct / positives if positives else math.nan
            rows.append(
                {
                    "label": names[label] if names is not None else label,
                    "AP": percent(float(self.average_precision[label])),
                    "precision": percent(precision),
                    "recall": percent(recall),
                    "F1": percent(f1(precision, recall)),
                    "positives": positives,
                    "predicted": predicted,
                    "known": int(self.tally.known[label]),
                }
            )
        return rows


def multilabel_scores(
    scores: ArrayLike,
    targets: ArrayLike,
    *,
    thresholds: float | Sequence[float] | ArrayLike = 0.5,
    predicted: Mask | None = None,
    top_k: int | Sequence[int] = 3,
    method: Method = "area",
) -> MultiLabelScores:
    """Every metric of an evaluation.

    Args:
        scores: [M, N].
        targets: [M, N] in {1, 0, -1}; unknown entries (-1) are left out.
        thresholds: One for all labels, or one per label [N].
        predicted: [M, N], which labels were predicted, instead of those that reach their thresholds.
        top_k: The k of the top-k metrics, one or several.
        method: Of average precision: "area", "interpolated" or "11-point" (see `average_precision`).

    >>> result = multilabel_scores([[0.9, 0.6], [0.2, 0.7]], [[1, 0], [1, 1]], top_k=1)
    >>> result.mAP, round(result.at_thresholds.OP, 4), result.at_top_k[1].OP, result.unknown_entries
    (1.0, 0.6667, 1.0, 0)
    """
    values, known = read_both(scores, targets)
    checked = read_thresholds(thresholds, values.shape[1])
    tally = Tally.of(values, known, checked, read_top_ks(top_k), predicted=predicted)
    return MultiLabelScores.from_parts(tally, average_precision(values, known, method).numpy(), method)


def read_top_ks(top_k: int | Sequence[int]) -> tuple[int, ...]:
    """One k or several, each once, in the given order."""
    return tuple(dict.fromkeys(read_k(k) for k in ([top_k] if isinstance(top_k, int) else top_k)))


def _six(scores: PrecisionRecall, suffix: str) -> dict[str, float | None]:
    return {f"{name}{suffix}": percent(getattr(scores, name)) for name in ("CP", "CR", "CF1", "OP", "OR", "OF1")}


def percent(fraction: float) -> float | None:
    """A fraction for JSON, which has no NaN.

    >>> percent(0.5), percent(math.nan)
    (50.0, None)
    """
    return None if math.isnan(fraction) else 100 * fraction
