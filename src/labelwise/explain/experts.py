"""Which experts each label relies on: HSQ's gates in numbers (figure 5 of the paper, and what it leaves open)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelwise.explain.clusters import Merge, average_linkage

Doubles = NDArray[np.float64]

DEAD = 0.1  # an expert that gets less than this share of its even part, from every label that may use it, is dead


@dataclass(frozen=True)
class ExpertUse:
    """Mean gate weights over some images. Columns are in the order of the paper's figure: the shared experts first,
    then each label's own. Every row sums to 1.

    >>> use = ExpertUse(("cat", "dog"), np.array([[[0.5, 0.01, 0.49], [0.3, 0.02, 0.68]]]), shared_experts=2)
    >>> use.experts, use.dead(0), [round(float(load), 3) for load in use.load(0)]
    (('s1', 's2', 'own'), ['s2'], [0.4, 0.015, 0.585])
    >>> round(use.evenness(0), 3), round(use.variation(0), 3), round(use.own_share(0), 3)
    (0.224, 0.928, 0.585)
    """

    names: tuple[str, ...]  # K: the labels, or the labels of each group
    weights: Doubles  # [layers, K, n_s + n_t]
    shared_experts: int  # n_s
    images: int = 0  # how many the mean is over
    data: str = ""  # what images, for captions
    history: tuple[tuple[int, Doubles], ...] = ()  # (epoch, weights on the validation images), if it was recorded

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
        """How much of the weight goes to the labels' own experts, averaged over the labels."""
        return float(self.load(layer)[self.shared_experts :].sum())

    def evenness(self, layer: int) -> float:
        """How evenly the shared experts are used: the entropy of their loads, 1 if all equal, 0 if one has all."""
        return evenness(self.load(layer)[: self.shared_experts])

    def variation(self, layer: int) -> float:
        """The coefficient of variation (deviation / mean) of the shared experts' loads: 0 if all are equal."""
        shared = self.load(layer)[: self.shared_experts]
        return float(shared.std() / shared.mean()) if len(shared) and shared.mean() > 0 else 0.0

    def dead(self, layer: int) -> list[str]:
        """Experts that do next to nothing: a shared one if every label gives it less than a tenth of an even part
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
        """How differently each two labels use the shared experts, [K, K]: the part of their weight (each label's shared
        weights scaled to sum 1) that lies on different experts. 0: the same mixture; 1: not one expert in common."""
        shared = self.weights[layer][:, : self.shared_experts]
        mixtures = shared / np.maximum(shared.sum(axis=1, keepdims=True), 1e-12)
        # Row by row: all pairs at once would need K x K x n_s numbers.
        rows = [np.abs(mixtures - row).sum(axis=1) / 2 for row in mixtures]
        return np.stack(rows)

    def tree(self, layer: int) -> list[Merge]:
        """Labels that share experts, clustered by `distances`."""
        return average_linkage(self.distances(layer))

    def closest(self, layer: int, pairs: int = 8) -> list[tuple[str, str, float]]:
        """The label pairs that share experts most, with the common part of their mixtures (1: all of it)."""
        apart = self.distances(layer)
        found = sorted(combinations(range(len(self.names)), 2), key=lambda pair: apart[pair])[:pairs]
        return [(self.names[a], self.names[b], float(1 - apart[a, b])) for a, b in found]

    def as_dict(self) -> dict[str, Any]:
        """What `labelwise explain --experts --out FILE.json` writes."""
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
    """Entropy of the loads over its largest possible value.

    >>> evenness(np.ones(8)), round(evenness(np.array([1.0, 0.0])), 3), evenness(np.array([0.2]))
    (1.0, 0.0, 1.0)
    """
    if len(loads) < 2 or loads.sum() <= 0:
        return 1.0
    shares = loads / loads.sum()
    return abs(float((shares * np.log(np.maximum(shares, 1e-300))).sum() / np.log(len(loads))))  # abs: 0, not -0
