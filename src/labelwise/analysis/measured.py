"""Runs measured on the same images and the same labels."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from labelwise.analysis.experts import ExpertUse
from labelwise.core.arrays import Doubles, Scores, Targets
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write, sha256
from labelwise.data.images import BadImage
from labelwise.data.sources import open_data
from labelwise.data.table import LabelTable
from labelwise.evaluation import Evaluation, TableLogits, match_labels, measure
from labelwise.model.config import ModelConfig
from labelwise.model.folder import CONFIG, WEIGHTS
from labelwise.runtime.prediction import decide, probabilities
from labelwise.training.run import Run, with_splits_of_run

FORMAT = 1  # raised when the same model would give other numbers, or the file another shape
FOLDER = "predictions"  # in a run folder; for a model without one, beside the report


@dataclass(frozen=True)
class StoredPredictions:
    predictions: TableLogits
    complexity: dict[str, Any]  # `Complexity.to_dict`
    experts: ExpertUse | None  # mean gate weights over the same images, for heads with experts


def predict_once(
    run: Run,
    table: LabelTable,
    fallback: Path,
    *,
    batch_size: int = 32,
    workers: int = 2,
    progress: bool = True,
) -> StoredPredictions:
    """From the run's `predictions` folder (without a run folder: from `fallback`), or computed and put there.

    Pictures that cannot be decoded are left out and listed. A frozen backbone's features come from the cache.
    """
    path = (run.folder / FOLDER if run.folder else fallback) / f"{fingerprint(run, table.images)}.npz"
    stamps = file_stamps(table.images)
    stored = _read(path, stamps)
    if stored is None:
        stored = _predict(run, table, batch_size, workers, progress)
        _write(path, stored, stamps)
    return stored


def fingerprint(run: Run, images: Sequence[str]) -> str:
    """The same for the same weights, architecture and list of images; temperature and thresholds come later."""
    # As it was saved: options that have been renamed or added since must not make stored predictions look outdated.
    saved = json.loads((run.model_folder / CONFIG).read_text(encoding="utf-8"))
    counts = set(type(run.config).model_fields) - {"temperature", "offset", "thresholds", "results"}
    config = {name: value for name, value in saved.items() if name in counts}
    about = json.dumps([FORMAT, config, list(images)], sort_keys=True)
    return sha256(run.model_folder / WEIGHTS, about).hexdigest()[:32]


def file_stamps(images: Sequence[str]) -> NDArray[np.int64]:
    """Size and time of change of each file, [M, 2]; -1 for one that is not there."""

    def stamp(path: str) -> tuple[int, int]:
        try:
            status = os.stat(path)
        except OSError:
            return -1, -1
        return status.st_size, status.st_mtime_ns

    return np.array([stamp(image) for image in images], np.int64).reshape(-1, 2)


def _predict(run: Run, table: LabelTable, batch_size: int, workers: int, progress: bool) -> StoredPredictions:
    import torch

    from labelwise.analysis.experts import in_figure_order, row_names
    from labelwise.evaluation.inference import predict_logits
    from labelwise.features import FeatureCache
    from labelwise.heads import GateMeter
    from labelwise.model.complexity import measure_complexity

    model = run.model()
    complexity = measure_complexity(model).to_dict()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    features = None
    if run.frozen:
        features = FeatureCache.build(
            table,
            model.backbone,
            model.config.preprocessing,
            flips=False,
            batch_size=batch_size,
            workers=workers,
            on_bad_image="skip",
            progress=progress,
        )
    with GateMeter(model.head) as meter:
        predictions = predict_logits(
            model,
            table,
            batch_size=batch_size,
            workers=workers,
            on_bad_image="skip",
            progress=progress,
            features=features,
        )
    experts, gates = None, meter.total()
    counts = model.config.head.expert_counts
    if gates is not None and counts is not None:
        _, shared = counts
        names = row_names(model.labels, model.head.label_query.cpu().numpy())
        weights = in_figure_order(gates.numpy() / meter.images, shared)
        experts = ExpertUse(names, weights, shared, meter.images)
    return StoredPredictions(predictions, complexity, experts)


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
    """None if there is nothing, it is damaged, or a picture has changed since. One that has gone does not count as
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
    def targets(self) -> Targets:
        return self.table.targets()  # [M, N]

    @cached_property
    def scores(self) -> Doubles:
        """What people see: probabilities [M, N]."""
        return probabilities(self.logits, self.config)

    @property
    def values(self) -> Scores:
        """What ranks images [M, N]: logits where labels are independent, because sigmoids round to ties."""
        return self.logits if self.config.task == "multi-label" else self.scores

    @cached_property
    def thresholds(self) -> Doubles:
        return np.array(self.config.label_thresholds)  # [N], of `scores`

    @cached_property
    def predicted(self) -> NDArray[np.bool_]:
        """Which labels the model names, [M, N]."""
        return decide(self.scores, self.config)

    @property
    def average_precision(self) -> Doubles:
        """Fractions [N]; NaN for a label without a positive."""
        return self.evaluation.scores.average_precision

    def to_dict(self) -> dict[str, Any]:
        """What `labelwise evaluate --json` gives, and where it comes from."""
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


@dataclass(frozen=True)
class ReportData:
    whole: LabelTable  # every split: what the data problems are looked for in
    measured: LabelTable
    split: str


def report_data(runs: Sequence[Run], data: str | None, split: str | None) -> ReportData:
    """`data` and `split` as the user gave them. Without data: that of the first run's recipe, which the other runs
    must share. Without a split: test if there is one, else the images that the training validated on."""
    source = data or _own_source(runs)
    # A picture that has gone should not hide what is known about the others, so files are not looked for here.
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
    raise LabelwiseError(f"{source} has neither a test nor a val split; say what to measure on: --split NAME, or all")


def trained_on(run: Run, table: LabelTable) -> int | None:
    """How many of the table's images the run was trained on; None if nobody knows."""
    if run.recipe is None or run.recipe.data.source is None:
        return None
    from labelwise.training.display import Display
    from labelwise.training.setup import open_tables

    try:
        train, _ = open_tables(run.recipe, Display(None), run=run.folder)
    except LabelwiseError:  # its data is somewhere else now
        return None
    known = {os.path.realpath(image) for image in train.images}
    return sum(os.path.realpath(image) in known for image in table.images)


def _own_source(runs: Sequence[Run]) -> str:
    sources = {run.recipe.data.source for run in runs if run.recipe is not None and run.recipe.data.source}
    if not sources:
        raise LabelwiseError("these models do not say what they were trained on: add --data, for example photos.csv")
    if len(sources) > 1:
        listed = ", ".join(sorted(sources))
        raise LabelwiseError(f"the runs were trained on different data ({listed}): say what to compare on with --data")
    return sources.pop()


def _held_out(run: Run) -> LabelTable | None:
    """What the training validated on, also where it took that from the training images itself."""
    if run.recipe is None or run.recipe.data.validation is None:
        return None
    from labelwise.training.display import Display
    from labelwise.training.setup import open_tables

    return open_tables(run.recipe, Display(None), run=run.folder)[1]
