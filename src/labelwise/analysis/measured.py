"""Runs measured on the same images and labels, with their predictions stored so that each is computed once."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from labelwise.analysis.experts import ExpertUse, measured_use
from labelwise.core.arrays import Doubles, Scores, Targets
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write, sha256
from labelwise.data.images import BadImage
from labelwise.data.sources import open_data
from labelwise.data.table import LabelTable
from labelwise.evaluation import Evaluation, TableLogits, match_labels, measure
from labelwise.evaluation.inference import InferenceOptions, predict_logits
from labelwise.model.config import ModelConfig, relabelled_config
from labelwise.runtime.folder import CONFIG, WEIGHTS
from labelwise.runtime.prediction import decide, probabilities, ranking_values
from labelwise.training.display import Display
from labelwise.training.recipe import own_data
from labelwise.training.run import Run, with_splits_of_run
from labelwise.training.tables import open_tables

FORMAT = 1  # of stored predictions; raised when the same model would give other numbers, or the file another shape
FOLDER = "predictions"  # of a run folder


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A run with its predictions and metrics.

    Attributes:
        run: The run.
        config: The model's config with the labels that are measured: its own, or those that all compared runs share.
        table: The images that could be decoded, with `config.labels` as columns.
        logits: Of these images, [M, N].
        evaluation: The metrics.
        complexity: Parameters and multiply-adds (`Complexity.to_dict`).
        experts: Mean gate weights over the images, for heads with experts.
    """

    run: Run
    config: ModelConfig
    table: LabelTable
    logits: NDArray[np.float32]
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
    def targets(self) -> Targets:
        return self.table.targets()  # [M, N]

    @cached_property
    def scores(self) -> Doubles:
        """Probabilities [M, N]."""
        return probabilities(self.logits, self.config)

    @property
    def values(self) -> Scores:
        """What images are ranked by [M, N]."""
        return ranking_values(self.logits, self.config)

    @cached_property
    def thresholds(self) -> Doubles:
        return np.array(self.config.label_thresholds)  # [N], of `scores`

    @cached_property
    def predicted(self) -> NDArray[np.bool_]:
        """Which labels the model predicts, [M, N]."""
        return decide(self.scores, self.config)

    @property
    def average_precision(self) -> Doubles:
        """Fractions [N]; NaN for a label without a positive."""
        return self.evaluation.scores.average_precision

    def to_dict(self) -> dict[str, Any]:
        """The evaluation, complexity, recipe, history and expert use as plain values."""
        return {
            "name": self.name,
            "source": self.run.source,
            **self.evaluation.to_dict(),
            "complexity": self.complexity,
            "recipe": self.run.recipe.model_dump(mode="json") if self.run.recipe else None,
            "history": self.run.history,
            "experts": self.experts.to_dict() if self.experts else None,
        }


def measure_runs(
    runs: Sequence[Run],
    table: LabelTable,
    out: Path,
    *,
    bootstrap: int = 1000,
    **inference: Unpack[InferenceOptions],
) -> list[MeasuredRun]:
    """Measure runs on the same images and labels.

    Args:
        runs: The runs.
        table: The images with their labels.
        out: Where predictions of models without a run folder are stored.
        bootstrap: Samples for confidence intervals and comparisons; 0 for none.
        **inference: `batch_size`, `workers` and `progress` of `predict_logits`.
    """
    labels = common_labels(runs)
    match_labels(table, labels, ignore_extra=True)  # before the work, not after it
    stored = [predict_once(run, table, out, **inference) for run in runs]
    rows = stored[0].predictions.rows
    for other in stored[1:]:  # a file may have become unreadable between two runs
        rows = np.intersect1d(rows, other.predictions.rows)
    seen = table.select(rows)
    matched = match_labels(seen, labels, ignore_extra=True)
    measured = []
    for run, kept in zip(runs, stored, strict=True):
        columns = [run.config.labels.index(label) for label in labels]
        config = relabelled_config(run.config, labels)
        logits = kept.predictions.logits[np.searchsorted(kept.predictions.rows, rows)][:, columns]
        predictions = TableLogits(np.ascontiguousarray(logits), np.arange(len(rows)), kept.predictions.bad_images)
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
        raise LabelwiseError(f"the runs have no label in common ({listed}); compare runs with common labels")
    if any(run.config.task == "single-label" and set(run.config.labels) != shared for run in runs):
        raise LabelwiseError(
            "the scores of a single-label model sum to 1: compare it only with models of the same labels"
        )
    return tuple(label for label in first if label in shared)


@dataclass(frozen=True)
class StoredPredictions:
    """What one run says about the images of a table."""

    predictions: TableLogits
    complexity: dict[str, Any]  # `Complexity.to_dict`
    experts: ExpertUse | None  # mean gate weights over the same images, for heads with experts


def predict_once(
    run: Run, table: LabelTable, fallback: Path, **inference: Unpack[InferenceOptions]
) -> StoredPredictions:
    """Read the predictions from the run's folder (without a run folder, from `fallback`), or compute and store them.

    Images that cannot be decoded are left out and listed. Features of a frozen backbone come from the cache.
    """
    path = (run.folder / FOLDER if run.folder else fallback) / f"{prediction_key(run, table.images)}.npz"
    stamps = file_stamps(table.images)
    stored = _read(path, stamps)
    if stored is None:
        stored = _predict(run, table, **inference)
        _write(path, stored, stamps)
    return stored


def prediction_key(run: Run, images: Sequence[str]) -> str:
    """The same for the same weights, architecture and images; temperature and thresholds do not change logits."""
    # As it was saved: options that have been renamed or added since must not make stored predictions look outdated.
    saved = json.loads((run.model_folder / CONFIG).read_text(encoding="utf-8"))
    counts = set(type(run.config).model_fields) - {"temperature", "offset", "thresholds", "results"}
    config = {name: value for name, value in saved.items() if name in counts}
    about = json.dumps([FORMAT, config, list(images)], sort_keys=True)
    return sha256(run.model_folder / WEIGHTS, about).hexdigest()[:32]


def file_stamps(images: Sequence[str]) -> NDArray[np.int64]:
    """Size and modification time of each file, [M, 2]; -1 if it does not exist."""

    def stamp(path: str) -> tuple[int, int]:
        try:
            status = os.stat(path)
        except OSError:
            return -1, -1
        return status.st_size, status.st_mtime_ns

    return np.array([stamp(image) for image in images], np.int64).reshape(-1, 2)


def _predict(run: Run, table: LabelTable, **inference: Unpack[InferenceOptions]) -> StoredPredictions:
    import torch

    from labelwise.features import FeatureCache
    from labelwise.heads import GateMeter
    from labelwise.model.complexity import measure_complexity

    model = run.model()
    complexity = measure_complexity(model).to_dict()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    reading: dict[str, Any] = {**inference, "on_bad_image": "skip"}
    features = None
    if run.frozen:
        features = FeatureCache.build(  # by the engine that training took
            table, model.backbone, model.config.preprocessing, flips=False, engine="auto", **reading
        )
    with GateMeter(model.head) as meter:
        predictions = predict_logits(model, table, features=features, **reading)
    return StoredPredictions(predictions, complexity, measured_use(model, meter))


def _write(path: Path, stored: StoredPredictions, stamps: NDArray[np.int64]) -> None:
    about = {
        "complexity": stored.complexity,
        "bad_images": [list(bad) for bad in stored.predictions.bad_images],
        "expert_rows": list(stored.experts.names) if stored.experts else None,
        "shared_experts": stored.experts.shared_experts if stored.experts else 0,
        "expert_images": stored.experts.images if stored.experts else 0,
    }

    def write(draft: Path) -> None:
        with draft.open("wb") as file:  # numpy would add a suffix to a path
            np.savez_compressed(
                file,
                logits=stored.predictions.logits,
                rows=stored.predictions.rows,
                stamps=stamps,
                gates=stored.experts.weights if stored.experts else np.zeros(0),
                about=np.array(json.dumps(about)),
            )

    atomic_write(path, write)


def _read(path: Path, stamps: NDArray[np.int64]) -> StoredPredictions | None:
    """None if there is no file, it is damaged, or an image has changed since. A deleted image does not count as
    changed: what the model said about it is still known."""
    try:
        with np.load(path, allow_pickle=False) as file:
            before, logits, rows = file["stamps"], file["logits"], file["rows"]
            gates: Doubles = file["gates"]
            about = json.loads(str(file["about"]))
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error):
        return None
    changed = (before != stamps).any(axis=1) & (stamps[:, 0] >= 0)
    if changed.any():
        return None
    experts = None
    if about["expert_rows"] is not None:
        experts = ExpertUse(tuple(about["expert_rows"]), gates, about["shared_experts"], about["expert_images"])
    bad_images = tuple(BadImage(*bad) for bad in about["bad_images"])
    return StoredPredictions(TableLogits(logits, rows, bad_images), about["complexity"], experts)


@dataclass(frozen=True)
class ReportData:
    """The data of a report."""

    whole: LabelTable  # every split
    measured: LabelTable
    split: str


def report_data(runs: Sequence[Run], data: str | None, split: str | None) -> ReportData:
    """The data and split to measure on.

    Without `data`: that of the runs' recipes, which must be the same. Without `split`: test if there is one, else the
    images that the training validated on; all images of a table without splits.
    """
    source = data or _own_source(runs)
    # Files are not checked: a missing image must not hide what is known about the others.
    whole = with_splits_of_run(open_data(source, check_files="no"), *(run.folder for run in runs))
    if split is not None:
        return ReportData(whole, whole.part(split), split)
    if "test" in whole.split_names:
        return ReportData(whole, whole.select("test"), "test")
    if "val" in whole.split_names:
        return ReportData(whole, whole.select("val"), "val")
    held_out = None if data else _held_out(runs[0])
    if held_out is not None:
        return ReportData(whole, held_out, "validation")
    if whole.split_names == ("",):
        return ReportData(whole, whole, whole.chosen_split(None))
    raise LabelwiseError(
        f"{source} has neither a test nor a val split; name the images to measure on", options={"split": "all"}
    )


def _own_source(runs: Sequence[Run]) -> str:
    sources = {source for run in runs if run.recipe is not None and (source := own_data(run.recipe))}
    if not sources:
        raise LabelwiseError(
            "these models do not say what they were trained on; name the data to measure on",
            options={"data": "photos.csv"},
        )
    if len(sources) > 1:
        listed = ", ".join(sorted(sources))
        raise LabelwiseError(
            f"the runs were trained on different data ({listed}); name the data to compare them on",
            options={"data": sorted(sources)[0]},
        )
    return sources.pop()


def _held_out(run: Run) -> LabelTable | None:
    """The images that the training validated on, also if it held them out of the training images itself."""
    if run.recipe is None or run.recipe.data.validation is None:
        return None
    held_out = open_tables(run.recipe, Display(None), run=run.folder)[1]
    return held_out if isinstance(held_out, LabelTable) else None


def trained_on(run: Run, table: LabelTable) -> int | None:
    """How many of the table's images the run was trained on; None if that is unknown."""
    if run.recipe is None or run.recipe.data.source is None:
        return None
    try:
        train, held_out = open_tables(run.recipe, Display(None), run=run.folder)
    except LabelwiseError:  # its data has moved
        return None
    if not isinstance(train, LabelTable):  # shards have no paths of their own to compare
        return None
    tables = [train, held_out] if held_out is not None and run.refitted else [train]
    known = {os.path.realpath(image) for table in tables for image in table.images}
    return sum(os.path.realpath(image) in known for image in table.images)
