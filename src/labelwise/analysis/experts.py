"""Which experts each label relies on: the gates of HSQ in numbers (figure 5 of the paper), and clusters of labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from labelwise.core.arrays import Doubles
from labelwise.core.errors import LabelwiseError
from labelwise.core.progress import progress_of
from labelwise.data.decode import TableImages
from labelwise.data.images import OnBadImage
from labelwise.data.table import LabelTable
from labelwise.engines.load import full_config
from labelwise.model.config import ModelConfig
from labelwise.model.folder import read_config
from labelwise.runtime.exported import GATES, ExportedModel
from labelwise.runtime.folder import find_folder
from labelwise.training.run import read_gates

if TYPE_CHECKING:
    from labelwise.evaluation.inference import InferenceOptions
    from labelwise.heads import GateMeter
    from labelwise.model.model import LabelModel


class Merge(NamedTuple):
    """Two clusters become one. Items are numbered 0 to n - 1; merge i makes cluster n + i."""

    left: int
    right: int
    distance: float  # mean over all pairs of items, one from each side


def average_linkage(distances: Doubles) -> list[Merge]:
    """Average linkage: the n - 1 merges of n items from their distances [n, n], nearest first.

    What scipy's `linkage(..., "average")` gives; scipy is not a dependency of labelwise.

    >>> average_linkage(np.array([[0, 1, 5], [1, 0, 7], [5, 7, 0]], float))
    [Merge(left=0, right=1, distance=1.0), Merge(left=2, right=3, distance=6.0)]
    """
    between = np.array(distances, np.float64)
    np.fill_diagonal(between, np.inf)
    cluster, size = list(range(len(between))), np.ones(len(between))
    merges = []
    for number in range(len(between) - 1):
        a, b = sorted(np.unravel_index(between.argmin(), between.shape))
        left, right = sorted((cluster[a], cluster[b]))
        merges.append(Merge(left, right, float(between[a, b])))
        joined = (size[a] * between[a] + size[b] * between[b]) / (size[a] + size[b])
        between[a], between[:, a] = joined, joined
        between[a, a] = np.inf
        between[b], between[:, b] = np.inf, np.inf  # b lives on in a
        cluster[a], size[a] = len(distances) + number, size[a] + size[b]
    return merges


def leaf_order(merges: list[Merge]) -> list[int]:
    """The items in an order in which every cluster is contiguous: the order of rows beside a dendrogram.

    >>> leaf_order([Merge(0, 3, 1.0), Merge(1, 4, 2.0), Merge(2, 5, 3.0)])
    [2, 1, 0, 3]
    """
    members: list[list[int]] = [[item] for item in range(len(merges) + 1)]
    for merge in merges:
        members.append(members[merge.left] + members[merge.right])
    return members[-1]


DEAD = 0.1  # an expert is dead if every label that may use it gives it less than this share of an equal part


@dataclass(frozen=True)
class ExpertUse:
    """Mean gate weights over some images.

    Columns are in the order of the paper's figure: the shared experts first, then the label's own. Rows sum to 1.

    Attributes:
        names: K names: the labels, or the labels of each group.
        weights: [layers, K, n_s + n_t].
        shared_experts: n_s.
        images: How many images the mean is over.
        data: Which images, for captions.
        history: (epoch, weights on the validation images), if the training recorded them.

    >>> use = ExpertUse(("cat", "dog"), np.array([[[0.5, 0.01, 0.49], [0.3, 0.02, 0.68]]]), shared_experts=2)
    >>> use.experts, use.dead(0), [round(float(load), 3) for load in use.load(0)]
    (('s1', 's2', 'own'), ['s2'], [0.4, 0.015, 0.585])
    >>> round(use.evenness(0), 3), round(use.variation(0), 3), round(use.own_share(0), 3)
    (0.224, 0.928, 0.585)
    """

    names: tuple[str, ...]
    weights: Doubles
    shared_experts: int
    images: int = 0
    data: str = ""
    history: tuple[tuple[int, Doubles], ...] = ()

    @property
    def layers(self) -> int:
        return len(self.weights)

    @property
    def task_experts(self) -> int:
        return int(self.weights.shape[2]) - self.shared_experts

    @property
    def experts(self) -> tuple[str, ...]:
        """Names of the columns: s1, s2, ... and own (or own 1, own 2, ...)."""
        own = ["own"] if self.task_experts == 1 else [f"own {j + 1}" for j in range(self.task_experts)]
        return (*(f"s{j + 1}" for j in range(self.shared_experts)), *own)

    def load(self, layer: int) -> Doubles:
        """The mean row of figure 5: each expert's weight averaged over the labels, [n_s + n_t]."""
        mean: Doubles = self.weights[layer].mean(axis=0)
        return mean

    def own_share(self, layer: int) -> float:
        """The share of the weight that goes to the labels' own experts, averaged over the labels."""
        return float(self.load(layer)[self.shared_experts :].sum())

    def evenness(self, layer: int) -> float:
        """Normalised entropy of the shared experts' loads: 1 if all are equal, 0 if one has all."""
        return evenness(self.load(layer)[: self.shared_experts])

    def variation(self, layer: int) -> float:
        """Coefficient of variation of the shared experts' loads: 0 if all are equal."""
        shared = self.load(layer)[: self.shared_experts]
        return float(shared.std() / shared.mean()) if len(shared) and shared.mean() > 0 else 0.0

    def dead(self, layer: int) -> list[str]:
        """Experts that are hardly used: a shared one if every label gives it less than a tenth of an equal part
        1 / (n_s + n_t), a label's own one if that label does."""
        unused = self.weights[layer] < DEAD / self.weights.shape[2]  # [K, n_s + n_t]
        shared = [name for name, never in zip(self.experts, unused.all(axis=0), strict=True) if never]
        shared = [name for name in shared if not name.startswith("own")]
        own = [
            f"{self.experts[column]} of {self.names[row]}"
            for row, column in np.argwhere(unused)
            if column >= self.shared_experts
        ]
        return shared + own

    def distances(self, layer: int) -> Doubles:
        """Total variation distance of the labels' shared weights (each scaled to sum 1), [K, K].

        0: the same mixture of experts; 1: no expert in common.
        """
        shared = self.weights[layer][:, : self.shared_experts]
        mixtures = shared / np.maximum(shared.sum(axis=1, keepdims=True), 1e-12)
        # Row by row: all pairs at once would take K x K x n_s numbers.
        rows = [np.abs(mixtures - row).sum(axis=1) / 2 for row in mixtures]
        return np.stack(rows)

    def tree(self, layer: int) -> list[Merge]:
        """The labels clustered by `distances`."""
        return average_linkage(self.distances(layer))

    def closest(self, layer: int, pairs: int = 8) -> list[tuple[str, str, float]]:
        """The pairs of labels with the smallest distances, each with 1 - distance."""
        apart = self.distances(layer)
        found = sorted(combinations(range(len(self.names)), 2), key=lambda pair: apart[pair])[:pairs]
        return [(self.names[a], self.names[b], float(1 - apart[a, b])) for a, b in found]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {
            "data": self.data,
            "images": self.images,
            "labels": list(self.names),
            "experts": list(self.experts),
            "layers": [
                {
                    "weights": self.weights[layer].tolist(),
                    "load": self.load(layer).tolist(),
                    "own_share": self.own_share(layer),
                    "evenness": self.evenness(layer),
                    "variation": self.variation(layer),
                    "dead": self.dead(layer),
                    "closest": [{"labels": [a, b], "shared": shared} for a, b, shared in self.closest(layer)]
                    if self.shared_experts
                    else [],
                }
                for layer in range(self.layers)
            ],
            "history": [{"epoch": epoch, "load": weights.mean(axis=1).tolist()} for epoch, weights in self.history],
        }


def evenness(loads: Doubles) -> float:
    """Entropy of the loads divided by its largest possible value.

    >>> evenness(np.ones(8)), round(evenness(np.array([1.0, 0.0])), 3), evenness(np.array([0.2]))
    (1.0, 0.0, 1.0)
    """
    if len(loads) < 2 or loads.sum() <= 0:
        return 1.0
    shares = loads / loads.sum()
    return abs(float((shares * np.log(np.maximum(shares, 1e-300))).sum() / np.log(len(loads))))  # abs: 0, not -0


def expert_use(
    model: LabelModel, table: LabelTable, *, run: str | Path | None = None, **inference: Unpack[InferenceOptions]
) -> ExpertUse:
    """Mean gate weights of a model over all images of a table.

    Args:
        model: A model whose head has experts.
        table: The images.
        run: A run folder, whose recorded history is added.
        **inference: Options of `predict_logits`.
    """
    from labelwise.evaluation.inference import predict_logits
    from labelwise.heads import GateMeter

    shared = check_has_experts(model.config)
    with GateMeter(model.head) as meter:
        predict_logits(model, table, **inference)
    use = measured_use(model, meter)
    assert use is not None
    return replace(use, data=table.source, history=() if run is None else _history(Path(run), shared))


def exported_use(
    model: ExportedModel,
    table: LabelTable,
    *,
    on_bad_image: OnBadImage = "error",
    workers: int = 0,
) -> ExpertUse:
    """`expert_use` of an exported model, from the gates that it gives; without PyTorch.

    Args:
        model: An export with maps, of a model whose head has experts.
        table: The images.
        on_bad_image: `skip` leaves out images that cannot be decoded.
        workers: Threads that decode images; 0: one per core.
    """
    config = full_config(model)
    shared = check_has_experts(config)
    if GATES not in model.about.outputs:
        raise LabelwiseError(f"{str(model.folder)!r} was exported without maps and gates; export it again with them")
    total: Doubles | None = None  # [layers, K, n_t + n_s]
    query, images = np.arange(0), 0
    source = TableImages(table, config.preprocessing, on_bad_image, workers)
    with progress_of("Evaluating", len(table)) as advance:
        for rows, inputs in source.batches(32):
            evidence = model.evidence(inputs)
            assert evidence.gates is not None
            seen = evidence.gates.astype(np.float64).sum(axis=0)
            total, query, images = seen if total is None else total + seen, evidence.label_query, images + len(rows)
            advance(len(rows))
    if total is None:
        raise LabelwiseError(f"{table.source}: none of the {len(table)} images can be used")
    names = row_names(config.labels, query)
    return ExpertUse(names, in_figure_order(total / images, shared), shared, images, table.source)


def measured_use(model: LabelModel, meter: GateMeter) -> ExpertUse | None:
    """Expert use from what a meter has seen; None for a head without gates."""
    total, shared = meter.total(), shared_experts(model.config)
    if total is None or shared is None:
        return None
    names = row_names(model.labels, model.head.label_query.cpu().numpy())
    return ExpertUse(names, in_figure_order(total.numpy() / meter.images, shared), shared, meter.images)


def recorded_use(run: str | Path) -> ExpertUse | None:
    """Expert use on the validation images as the training recorded it, of the epoch whose weights were saved.

    None if the head has no gates, or if the run was trained without validation images or by an older version.
    """
    folder = find_folder(run)
    config = read_config(folder)
    shared = shared_experts(config)
    history = () if shared is None else _history(Path(run), shared)
    saved = next((weights for epoch, weights in history if epoch == config.results.get("epoch")), None)
    if shared is None or saved is None:
        return None
    names = config.labels if saved.shape[1] == len(config.labels) else [f"group {k + 1}" for k in range(saved.shape[1])]
    return ExpertUse(tuple(names), saved, shared, data="validation images", history=history)


def check_has_experts(config: ModelConfig) -> int:
    """n_s; an error if the head has no gates."""
    shared = shared_experts(config)
    if shared is None:
        raise LabelwiseError("this model's head has no experts to choose among; train a model with the head 'hsq'")
    return shared


def in_figure_order(weights: NDArray[np.floating], shared: int) -> Doubles:
    """The head lists a label's own experts first, the paper's figure lists them last."""
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
    counts = config.head.expert_counts
    return None if counts is None else counts[1]


def _history(run: Path, shared: int) -> tuple[tuple[int, Doubles], ...]:
    return tuple((epoch, in_figure_order(weights, shared)) for epoch, weights in read_gates(run))
