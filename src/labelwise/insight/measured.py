"""Runs measured on the same images and the same labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.data.table import LabelTable
from labelwise.errors import LabelwiseError
from labelwise.evaluation import Evaluation, Predictions, match_labels, measure
from labelwise.evaluation.fit import Doubles, logit_thresholds, scores_of
from labelwise.explain.experts import ExpertUse
from labelwise.insight.predictions import predict_once
from labelwise.insight.run import Run
from labelwise.metrics.inputs import Bytes, Floats
from labelwise.model_config import ModelConfig


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """`config` has the labels that are measured on: the model's own, or those that all runs of a report share."""

    run: Run
    config: ModelConfig
    table: LabelTable  # the images that could be decoded, with `config.labels` as columns
    logits: NDArray[np.float32]  # [M, N] of those
    evaluation: Evaluation
    complexity: dict[str, Any]
    experts: ExpertUse | None

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.labels

    @cached_property
    def targets(self) -> Bytes:
        return self.table.targets()  # [M, N]

    @cached_property
    def scores(self) -> Doubles:
        """What people see: probabilities [M, N]."""
        return scores_of(self.config, self.logits)

    @property
    def values(self) -> Floats:
        """What ranks images [M, N]: logits where labels are independent, because sigmoids round to ties."""
        return self.logits if self.config.task == "multi-label" else self.scores

    @cached_property
    def thresholds(self) -> Doubles:
        return np.array(self.config.limits)  # [N], of `scores`

    @cached_property
    def predicted(self) -> NDArray[np.bool_]:
        """Which labels the model names, [M, N]."""
        if self.config.task == "single-label":
            best: NDArray[np.bool_] = self.scores.argmax(axis=1)[:, None] == np.arange(len(self.labels))
            return best
        passing: NDArray[np.bool_] = self.logits >= logit_thresholds(self.config)
        return passing

    @property
    def average_precision(self) -> Doubles:
        """Fractions [N]; NaN for a label without a positive."""
        return self.evaluation.scores.average_precision

    def as_dict(self) -> dict[str, Any]:
        """What `labelwise evaluate --json` gives, and where it comes from."""
        return {
            "name": self.name,
            "source": self.run.source,
            **self.evaluation.as_dict(),
            "complexity": self.complexity,
            "recipe": self.run.recipe.model_dump(mode="json") if self.run.recipe else None,
            "history": self.run.history,
            "experts": self.experts.as_dict() if self.experts else None,
        }


def measure_runs(
    runs: Sequence[Run],
    table: LabelTable,
    out: Path,
    *,
    bootstrap: int = 1000,
    batch_size: int = 32,
    workers: int = 2,
    progress: bool = True,
) -> list[MeasuredRun]:
    """Predict with each run (or find its predictions, `out` is for models without a run folder) and measure them."""
    labels = common_labels(runs)
    match_labels(table, labels, ignore_extra=True)  # before the work, not after it
    stored = [predict_once(run, table, out, batch_size=batch_size, workers=workers, progress=progress) for run in runs]
    rows = stored[0].predictions.rows
    for other in stored[1:]:  # a file may have broken between two runs
        rows = np.intersect1d(rows, other.predictions.rows)
    seen = table.select(rows)
    matched = match_labels(seen, labels, ignore_extra=True)
    measured = []
    for run, kept in zip(runs, stored, strict=True):
        columns = [run.config.labels.index(label) for label in labels]
        config = with_only(run.config, labels)
        logits = kept.predictions.logits[np.searchsorted(kept.predictions.rows, rows)][:, columns]
        predictions = Predictions(np.ascontiguousarray(logits), np.arange(len(rows)), kept.predictions.bad_images)
        evaluation = measure(config, seen, predictions, bootstrap=bootstrap, ignore_extra_labels=True)
        measured.append(
            MeasuredRun(run, config, matched, predictions.logits, evaluation, kept.complexity, kept.experts)
        )
    return measured


def common_labels(runs: Sequence[Run]) -> tuple[str, ...]:
    """The labels that all runs know, in the first run's order."""
    first = runs[0].config.labels
    shared = set(first).intersection(*(run.config.labels for run in runs))
    if not shared:
        listed = "; ".join(f"{run.name}: {', '.join(run.config.labels[:4])} …" for run in runs)
        raise LabelwiseError(f"the runs have no label in common ({listed}): compare runs on the same labels")
    if any(run.config.task == "single-label" and set(run.config.labels) != shared for run in runs):
        raise LabelwiseError(
            "a single-label model's scores are shares of one whole: compare it only with models of the same labels"
        )
    return tuple(label for label in first if label in shared)


def with_only(config: ModelConfig, labels: Sequence[str]) -> ModelConfig:
    """The config of a model that knows only these of its labels, with their thresholds."""
    threshold = dict(zip(config.labels, config.thresholds, strict=True)) if config.thresholds else None
    kept = tuple(threshold[label] for label in labels) if threshold else None
    return config.model_copy(update={"labels": tuple(labels), "thresholds": kept})
