"""Expert use of a model on images, and of a run from what its training recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from labelwise.data.table import LabelTable
from labelwise.errors import LabelwiseError
from labelwise.evaluation.inference import InferenceOptions, predict_logits
from labelwise.explain.experts import Doubles, ExpertUse
from labelwise.heads.config import QueryHeadConfig
from labelwise.heads.gate_meter import GateMeter
from labelwise.heads.query_head import QueryHead
from labelwise.model import LabelModel
from labelwise.model_config import ModelConfig
from labelwise.model_folder import find_folder, read_config
from labelwise.training.gates import read_gates


def expert_use(
    model: LabelModel, table: LabelTable, *, run: str | Path | None = None, **inference: Unpack[InferenceOptions]
) -> ExpertUse:
    """Mean gate weights of `model` over all images of `table`; with the history that `run`'s training recorded."""
    shared = check_has_experts(model.config)
    with GateMeter(model.head) as meter:
        predict_logits(model, table, **inference)
    total = meter.total()
    assert total is not None
    assert isinstance(model.head, QueryHead)
    names = row_names(model.labels, model.head.label_query.cpu().numpy())
    weights = in_figure_order(total.numpy() / meter.images, shared)
    history = () if run is None else _history(Path(run), shared)
    return ExpertUse(names, weights, shared, meter.images, table.source, history)


def recorded_use(run: str | Path) -> ExpertUse | None:
    """Expert use on the validation images as the training recorded it, of the epoch that was kept: needs no images.
    None if the head has no gates, or the run was trained without validation images or by an older version."""
    folder = find_folder(run)
    config = read_config(folder)
    shared = shared_experts(config)
    history = () if shared is None else _history(Path(run), shared)
    kept = next((weights for epoch, weights in history if epoch == config.results.get("epoch")), None)
    if shared is None or kept is None:
        return None
    names = config.labels if kept.shape[1] == len(config.labels) else [f"group {k + 1}" for k in range(kept.shape[1])]
    return ExpertUse(tuple(names), kept, shared, data="validation images", history=history)


def check_has_experts(config: ModelConfig) -> int:
    """n_s; an error if the head has no gates."""
    shared = shared_experts(config)
    if shared is None:
        raise LabelwiseError("this model's head has no experts to choose among; train one with --head hsq")
    return shared


def in_figure_order(weights: NDArray[np.floating], shared: int) -> Doubles:
    """The head lists a label's own experts first; the paper's figure, and so ours, lists them last."""
    own = weights.shape[2] - shared
    return np.concatenate([weights[..., own:], weights[..., :own]], axis=2).astype(np.float64)


def row_names(labels: tuple[str, ...], label_query: NDArray[np.int64]) -> tuple[str, ...]:
    """A name for each query: its label, or the labels of its group.

    >>> row_names(("cat", "cow", "dog"), np.array([1, 0, 1]))
    ('cow', 'cat, dog')
    """
    groups: list[list[str]] = [[] for _ in range(int(label_query.max()) + 1)]
    for label, query in zip(labels, label_query, strict=True):
        groups[query].append(label)
    return tuple(", ".join(group[:3]) + (", …" if len(group) > 3 else "") for group in groups)


def shared_experts(config: ModelConfig) -> int | None:
    """n_s; None if there are no gates."""
    head = config.head
    if not isinstance(head, QueryHeadConfig) or head.experts.experts != "hybrid":
        return None
    both = head.experts.shared_experts + head.experts.task_experts
    return head.experts.shared_experts if both > 1 else None


def _history(run: Path, shared: int) -> tuple[tuple[int, Doubles], ...]:
    return tuple((epoch, in_figure_order(weights, shared)) for epoch, weights in read_gates(run))
