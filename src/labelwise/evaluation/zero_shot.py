"""Zero-shot evaluation: a model on labels that its training never saw, alone (ZSL) and among the seen ones (GZSL)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from labelwise.core.arrays import Scores, Targets
from labelwise.core.errors import LabelwiseError
from labelwise.data.labels import labels_not_in, match_labels, respelt
from labelwise.data.stream_table import AnyTable
from labelwise.evaluation.bootstrap import Interval, bootstrap_intervals
from labelwise.evaluation.evaluate import LEVEL, MeasuredModel
from labelwise.evaluation.inference import InferenceOptions, predict_logits
from labelwise.metrics import MultiLabelScores, multilabel_scores, scores_as
from labelwise.metrics.precision_recall import f1
from labelwise.metrics.summary import percent
from labelwise.model.model import LabelModel
from labelwise.runtime.prediction import ranking_values

TOP_K = (1, 3, 5)
# What is shown of the many metrics: those without a threshold, which nobody can fit for an unseen label.
METRICS = ("mAP", *(f"{name}_top{k}" for k in TOP_K for name in ("OP", "OR", "OF1")))


@dataclass(frozen=True)
class LabelSetScores:
    """One list of labels on one set of images."""

    scores: MultiLabelScores
    chance: dict[str, float]  # fractions: what a random order of images and labels gets, as `METRICS`
    confidence: dict[str, Interval]  # fractions; empty if no samples were drawn

    @classmethod
    def measure(cls, values: Scores, targets: Targets, bootstrap: int = 0, seed: int = 0) -> LabelSetScores:
        """Of scores [M, N] against targets [M, N] in {1, 0, -1}."""
        nowhere = np.inf  # no score reaches this threshold
        intervals: dict[str, Interval] = {}
        if bootstrap:
            drawn = bootstrap_intervals(
                values, targets, thresholds=nowhere, top_k=TOP_K, samples=bootstrap, seed=seed, level=LEVEL
            )
            intervals = {name: drawn[name] for name in METRICS}
        return cls(multilabel_scores(values, targets, thresholds=nowhere, top_k=TOP_K), chance(targets), intervals)

    def to_dict(self) -> dict[str, Any]:
        """Percentages."""
        every = self.scores.to_dict()
        return {
            **{name: every[name] for name in METRICS},
            "chance": {name: percent(value) for name, value in self.chance.items()},
            "confidence": {
                name: [percent(interval.low), percent(interval.high)] for name, interval in self.confidence.items()
            },
            "labels": self.scores.labels,
            "labels_without_positives": self.scores.labels_without_positives,
            "positives": int(self.scores.tally.positives.sum()),
        }


@dataclass(frozen=True, repr=False, kw_only=True)
class ZeroShotEvaluation(MeasuredModel):
    """A model measured on labels that its training never saw. Printing it shows the headline metrics, in percent.

    Attributes:
        seen: The labels of the training, as in `config`.
        unseen: The other labels.
        zsl: The unseen labels alone.
        relative: The unseen labels, ranked by `relative_to_seen`.
        gzsl: The seen labels, then the unseen ones.
        conventions: ZSL and GZSL as other lines of work compute them, by their names (`metrics.scores_as`).
    """

    seen: tuple[str, ...]
    unseen: tuple[str, ...]
    zsl: LabelSetScores
    relative: LabelSetScores
    gzsl: LabelSetScores
    conventions: dict[str, tuple[MultiLabelScores, MultiLabelScores]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON; metrics as percentages."""
        every = self.gzsl.scores.to_dict(self.seen + self.unseen)
        hidden = set(self.unseen)
        conventions = {
            f"{name}, {part}": {metric: scores.to_dict()[metric] for metric in ("mAP", "OF1_top3", "OF1_top5")}
            for name, both in self.conventions.items()
            for part, scores in zip(("ZSL", "GZSL"), both, strict=True)
        }
        return (
            {
                "zsl": self.zsl.to_dict(),
                "zsl_relative": self.relative.to_dict(),
                "gzsl": self.gzsl.to_dict(),
                "images": self.gzsl.scores.images,
                "level": 100 * LEVEL,
                "samples": self.samples,
                "per_label": [
                    {
                        "label": row["label"],
                        "unseen": row["label"] in hidden,
                        "AP": row["AP"],
                        "chance": 100 * row["positives"] / row["known"] if row["known"] else None,
                        "positives": row["positives"],
                        "known": row["known"],
                    }
                    for row in every["per_label"]
                ],
                "unknown_entries": every["unknown_entries"],
            }
            | super().to_dict()
            | ({"conventions": conventions} if conventions else {})
        )


def evaluate_zero_shot(
    model: LabelModel,
    table: AnyTable,
    unseen: Sequence[str],
    *,
    bootstrap: int = 0,
    seed: int = 0,
    ignore_extra_labels: bool = False,
    conventions: Sequence[str] = (),
    **inference: Unpack[InferenceOptions],
) -> ZeroShotEvaluation:
    """Measure a model on labels that its training never saw, alone (ZSL) and among the seen ones (GZSL).

    Args:
        model: A model whose head takes words.
        table: The images with their labels.
        unseen: Names of labels that the model does not have.
        bootstrap: Samples for the confidence intervals; 0 for none.
        seed: Seed of the samples.
        ignore_extra_labels: Leave out labels of the data that are neither seen nor unseen.
        conventions: Also compute the metrics with the conventions of other papers (`metrics.scores_as`).
        **inference: Options of `predict_logits`.
    """
    labels = seen_and_unseen(model, unseen)
    table = respelt(table, labels)
    matched = match_labels(table, labels, ignore_extra=ignore_extra_labels)
    everything = model.with_labels(labels)
    general = predict_logits(everything, table, **inference)
    targets = matched.targets(general.rows)  # [m, N]
    first = len(model.labels)
    among_seen, hidden_targets = general.logits[:, first:], targets[:, first:]
    # An unseen label's logit is the same with and without the seen ones, unless labels interact.
    alone = among_seen
    if model.config.head.labels_interact:
        alone = predict_logits(model.with_labels(unseen), table, **inference).logits
    relative = relative_to_seen(among_seen, general.logits[:, :first])
    measured = (
        (ranking_values(alone, model.config), hidden_targets),
        (ranking_values(general.logits, model.config), targets),
    )
    return ZeroShotEvaluation(
        seen=model.labels,
        unseen=tuple(unseen),
        zsl=LabelSetScores.measure(*measured[0], bootstrap, seed),
        relative=LabelSetScores.measure(relative, hidden_targets, bootstrap, seed),
        gzsl=LabelSetScores.measure(*measured[1], bootstrap, seed),
        samples=bootstrap,
        bad_images=general.bad_images,
        labels_ignored=tuple(labels_not_in(labels, table.labels)),
        config=model.config,
        data=table.source,
        # No threshold: nobody can fit one for unseen labels.
        conventions={
            name: tuple(scores_as(name, *part, thresholds=-np.inf, top_k=TOP_K) for part in measured)  # type: ignore[misc]
            for name in conventions
        },
    )


def seen_and_unseen(model: LabelModel, unseen: Sequence[str]) -> tuple[str, ...]:
    """All labels that are asked for: those of the training first."""
    for name in unseen:
        if name in model.labels:
            raise LabelwiseError(f"the model was trained on {name!r}: it is not an unseen label")
    return (*model.labels, *unseen)


def relative_to_seen(unseen: NDArray[np.float32], seen: NDArray[np.float32]) -> NDArray[np.float32]:
    """Logits of unseen labels [M, U] minus the log-sum-exp of the seen ones [M, S]: an image that a seen label explains
    well ranks lower. The order within an image does not change, so only mAP does.

    >>> relative_to_seen(np.array([[1.0], [1.0]]), np.array([[2.0, -50.0], [-3.0, -50.0]])).tolist()
    [[-1.0], [4.0]]
    """
    return unseen - np.logaddexp.reduce(seen, axis=1, keepdims=True)


def chance(targets: Targets) -> dict[str, float]:
    """What random scores reach on average, as fractions: AP is about a label's share of positives, and k random labels
    of N contain k / N of the positives.

    >>> level = chance(np.array([[1, 0], [0, 0], [1, 1], [0, 0]]))
    >>> level["mAP"], level["OP_top1"], level["OR_top1"], round(level["OF1_top1"], 4)
    (0.375, 0.375, 0.5, 0.4286)
    """
    known, positives = (targets >= 0).sum(axis=0), (targets == 1).sum(axis=0)  # [N]
    has_positive = positives > 0
    if not has_positive.any():
        return dict.fromkeys(METRICS, math.nan)
    level = {"mAP": float((positives[has_positive] / known[has_positive]).mean())}
    for k in TOP_K:
        precision, recall = float(positives.sum() / known.sum()), min(1.0, k / targets.shape[1])
        level |= {f"OP_top{k}": precision, f"OR_top{k}": recall, f"OF1_top{k}": f1(precision, recall)}
    return level
