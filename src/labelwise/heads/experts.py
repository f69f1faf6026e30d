"""Part 4 of a query head: HSQ's hybrid sharing layers (section 3.3, Algorithm 1) and the plain layers to compare with.

Vectors are query-major here, [K, B, d]: see `expert_banks`. K is the number of labels L, or of groups.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.heads.base import Recorder
from labelwise.heads.config import ExpertsConfig
from labelwise.heads.expert_banks import (
    ExpertBank,
    LinearBank,
    QueryMade,
    QueryMadeBank,
    QueryMadeLinear,
    QueryMadeMlp,
    create_bank,
    first_expert,
    per_query_mlp,
)

_SPREAD = 0.1  # how far experts that start alike lie apart, of their size

# From here on a product is faster than the sum of a [K, B, E, d_o] that has to be written first; below, it is slower.
_MANY_EXPERTS = 8

# ReLU in place: what comes before it is a product that nobody else reads, and writing a second copy costs more.
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": partial(nn.ReLU, inplace=True),
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "none": nn.Identity,
}


class HybridSharingLayer(nn.Module):
    """Every query mixes its own n_t experts with n_s shared ones; its gate decides how much of each (eq. 1).

    The shared output O_s (eq. 2) feeds only the next layer's O_s under `wiring="paper"`: the classifier reads the task
    outputs alone. So it is computed only where somebody reads it (`shared_output`), which leaves logits and gradients
    as they are and saves the one term that is quadratic in the number of labels.
    """

    def __init__(
        self, queries: int, dim: int, d_in: int, d_out: int, config: ExpertsConfig, shared_output: bool
    ) -> None:
        super().__init__()
        own, shared = config.task_experts, config.shared_experts
        self.progressive = config.wiring == "progressive"
        self.task = _task_bank(queries, dim, d_in, d_out, config) if own else None
        self.shared = create_bank(config.expert, None, shared, d_in, d_out) if shared else None
        # A choice among one expert is no choice: its gate would never get a gradient.
        self.gate = _gate(queries, dim, d_in, own + shared, config) if own + shared > 1 else None
        self.shared_gate = _mlp(d_in, config.gate_hidden, queries * own + shared) if shared_output else None
        self.activation = _ACTIVATIONS[config.activation]()
        if config.expert_start == "alike":
            one = first_expert(d_in, d_out)
            for bank in (self.task, self.shared):
                if isinstance(bank, LinearBank):
                    bank.start_near(one, _SPREAD)

    def forward(
        self,
        x_task: Tensor,
        x_shared: Tensor | None,
        record: Recorder | None = None,
        queries: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """X_t [K, B, d], and X_s of the same shape where this layer reads it -> O_t [K, B, d_o] and O_s or None.
        Weights that are made from queries need the `queries` [K, D]."""
        # Eq. 1. The paper feeds the shared experts with the task's vector, PLE with the shared stream's.
        x_for_shared = x_shared if self.progressive and x_shared is not None else x_task
        outputs = [] if self.task is None else [_apply(self.task, x_task, queries)]
        if self.shared is not None:
            outputs.append(self.shared(x_for_shared))
        y = self.activation(_join(outputs))  # [K, B, n_t + n_s, d_o]
        # [K, B, n_t + n_s]
        weights = y.new_ones(y.shape[:3]) if self.gate is None else _apply(self.gate, x_task, queries).softmax(dim=-1)
        if record is not None:
            record.gates.append(weights)
        return _mix(weights, y), self._shared_output(x_shared)

    def _shared_output(self, x: Tensor | None) -> Tensor | None:
        """Eq. 2: all experts of all tasks and the shared ones, fed and gated by the shared stream."""
        if self.shared_gate is None or x is None:
            return None
        assert not isinstance(self.task, QueryMadeBank)  # the config allows no shared stream over made experts
        outputs = [] if self.task is None else [self.task.on_every_query(x)]
        if self.shared is not None:
            outputs.append(self.shared(x))
        y = self.activation(_join(outputs))  # [K, B, K * n_t + n_s, d_o]
        return _mix(self.shared_gate(x).softmax(dim=-1), y)


class HybridSharing(nn.Module):
    """A stack of hybrid sharing layers: each stream feeds its own stream in the next layer."""

    def __init__(self, queries: int, dim: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.out_features = config.widths[-1]
        steps = list(pairwise((dim, *config.widths)))
        # Who reads a layer's shared output: the next layer's shared experts when they are fed from it, or the user.
        flows = config.wiring == "progressive" and config.shared_experts > 0
        self.layers = nn.ModuleList(
            HybridSharingLayer(
                queries,
                dim,
                d_in,
                d_out,
                config,
                shared_output=config.shared_stream or (flows and step < len(steps) - 1),
            )
            for step, (d_in, d_out) in enumerate(steps)
        )

    def forward(self, x: Tensor, record: Recorder | None = None, queries: Tensor | None = None) -> Tensor:
        """[K, B, D] -> [K, B, d_o]"""
        x_task, x_shared = x, x  # "except the initial layer, which uses an identical input"
        for layer in self.layers:
            x_task, x_shared = layer(x_task, x_shared, record, queries)
        if record is not None:
            record.shared = x_shared
        return x_task


class LinearExperts(nn.Module):
    """HSQ-Linear: fully connected layers of the same depth and widths, one set for all labels (section 4.1)."""

    def __init__(self, dim: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.out_features = config.widths[-1]
        activation = _ACTIVATIONS[config.activation]
        steps = pairwise((dim, *config.widths))
        self.layers = nn.Sequential(*(m for d_in, d_out in steps for m in (nn.Linear(d_in, d_out), activation())))

    def forward(self, x: Tensor, record: Recorder | None = None, queries: Tensor | None = None) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class NoExperts(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out_features = dim

    def forward(self, x: Tensor, record: Recorder | None = None, queries: Tensor | None = None) -> Tensor:
        return x


def create_experts(queries: int, dim: int, config: ExpertsConfig) -> HybridSharing | LinearExperts | NoExperts:
    if config.experts == "hybrid":
        return HybridSharing(queries, dim, config)
    return LinearExperts(dim, config) if config.experts == "linear" else NoExperts(dim)


def _task_bank(queries: int, dim: int, d_in: int, d_out: int, config: ExpertsConfig) -> ExpertBank | QueryMadeBank:
    if config.task_weights == "query":
        return QueryMadeBank(dim, config.task_experts, d_in, d_out, config.weight_rank)
    return create_bank(config.expert, queries, config.task_experts, d_in, d_out)


def _gate(queries: int, dim: int, d_in: int, experts: int, config: ExpertsConfig) -> nn.Module:
    if config.gate_weights == "own":
        return per_query_mlp(queries, d_in, config.gate_hidden, experts)
    if config.gate_weights == "shared":
        return _mlp(d_in, config.gate_hidden, experts)
    if config.gate_hidden is None:
        return QueryMadeLinear(dim, d_in, experts, config.weight_rank)
    return QueryMadeMlp(dim, d_in, config.gate_hidden, experts, config.weight_rank)


def _apply(module: Any, x: Tensor, queries: Tensor | None) -> Tensor:
    """A layer on each query's vectors [K, B, d]; one whose weights are made from the queries needs those too."""
    out: Tensor = module(x, queries) if isinstance(module, QueryMade) else module(x)
    return out


def _mlp(d_in: int, hidden: int | None, d_out: int) -> nn.Module:
    if hidden is None:
        return nn.Linear(d_in, d_out)
    return nn.Sequential(nn.Linear(d_in, hidden), nn.ReLU(), nn.Linear(hidden, d_out))


def _join(outputs: list[Tensor]) -> Tensor:
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def _mix(weights: Tensor, y: Tensor) -> Tensor:
    """Weighted sum over experts: [K, B, E], [K, B, E, d_o] -> [K, B, d_o]."""
    if y.shape[2] < _MANY_EXPERTS:
        return (weights.unsqueeze(-1) * y).sum(dim=2)
    return (weights.unsqueeze(2) @ y).squeeze(2)
