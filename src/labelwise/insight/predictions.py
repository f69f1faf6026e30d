"""What a model says about a table of images, computed once and kept on disk: a second report takes seconds."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from labelwise.data.images import BadImage
from labelwise.data.table import LabelTable
from labelwise.evaluation.inference import Predictions
from labelwise.explain.experts import Doubles, ExpertUse
from labelwise.insight.run import Run
from labelwise.model_folder import WEIGHTS

FORMAT = 1  # raised when the same model would give other numbers, or the file another shape
FOLDER = "predictions"  # in a run folder; for a model without one, beside the report


@dataclass(frozen=True)
class StoredPredictions:
    predictions: Predictions
    complexity: dict[str, Any]  # `Complexity.as_dict`
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
    with (run.model / WEIGHTS).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    config = run.config.model_dump(mode="json", exclude={"temperature", "offset", "thresholds", "results"})
    digest.update(json.dumps([FORMAT, config, list(images)], sort_keys=True).encode())
    return digest.hexdigest()[:32]


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

    from labelwise.complexity import measure_complexity
    from labelwise.evaluation.inference import predict_logits
    from labelwise.explain.gates import in_figure_order, row_names
    from labelwise.features import FeatureCache
    from labelwise.heads.config import QueryHeadConfig
    from labelwise.heads.gate_meter import GateMeter
    from labelwise.heads.query_head import QueryHead
    from labelwise.model import load_model

    model = load_model(run.model)
    complexity = measure_complexity(model).as_dict()
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
    if gates is not None and isinstance(model.head, QueryHead) and isinstance(model.config.head, QueryHeadConfig):
        shared = model.config.head.experts.shared_experts
        names = row_names(model.labels, model.head.label_query.cpu().numpy())
        weights = in_figure_order(gates.numpy() / meter.images, shared)
        experts = ExpertUse(names, weights, shared, meter.images)
    return StoredPredictions(predictions, complexity, experts)


def _write(path: Path, stored: StoredPredictions, stamps: NDArray[np.int64]) -> None:
    """First beside its place: what is there is always whole."""
    about = {
        "complexity": stored.complexity,
        "bad_images": [list(bad) for bad in stored.predictions.bad_images],
        "expert_rows": list(stored.experts.names) if stored.experts else None,
        "shared_experts": stored.experts.shared_experts if stored.experts else 0,
        "expert_images": stored.experts.images if stored.experts else 0,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, fresh = tempfile.mkstemp(suffix=".npz", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            np.savez_compressed(
                file,
                logits=stored.predictions.logits,
                rows=stored.predictions.rows,
                stamps=stamps,
                gates=stored.experts.weights if stored.experts else np.zeros(0),
                about=np.array(json.dumps(about)),
            )
        os.replace(fresh, path)
    finally:
        Path(fresh).unlink(missing_ok=True)


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
    return StoredPredictions(Predictions(logits, rows, bad_images), about["complexity"], experts)
