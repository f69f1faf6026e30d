"""Part 4 of a query head: HSQ's hybrid sharing layers (section 3.3, Algorithm 1) and the plain layers to compare with.

Vectors are query-major here, [K, B, d]: see `PerQueryLinear`. K is the number of labels L, or of groups.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.heads.base import Recorder
from labelwise.heads.config import ExpertsConfig
from labelwise.heads.layers import (
    PerQueryLinear,
    QueryMade,
    QueryMadeLinear,
    QueryMadeMlp,
    mlp,
    per_query_mlp,
    softmax,
)

_SPREAD = 0.1  # the differences between experts that start similar, relative to their size

# From this number on a matrix product is faster than a weighted sum, which has to write [K, B, E, d_o] first.
_MANY_EXPERTS = 8

# ReLU in place: nothing else reads its input, and a second copy costs more.
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": partial(nn.ReLU, inplace=True),
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "none": nn.Identity,
}


class HybridSharing(nn.Module):
    """A stack of hybrid sharing layers: each stream feeds its own stream in the next layer."""

    def __init__(self, queries: int, dim: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.out_features = config.widths[-1]
        steps = list(pairwise((dim, *config.widths)))
        # A layer's shared output is read by the next layer's shared experts (progressive wiring), or by the user.
        flows = config.wiring == "progressive" and config.shared_experts > 0
        self.layers = nn.ModuleList(
            HybridSharingLayer(
                queries, dim, d_in, d_out, config, config.shared_stream or (flows and step < len(steps) - 1)
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


class HybridSharingLayer(nn.Module):
    """Every query mixes its own n_t experts with n_s shared ones; its gate decides how much of each (eq. 1).

    Under `wiring="paper"` the shared output O_s (eq. 2) feeds only the next layer's O_s; the classifier reads the task
    outputs. So O_s is computed only if something reads it (`shared_output`). Logits and gradients stay the same, and
    the one term that is quadratic in the number of labels is gone.
    """

    def __init__(
        self, queries: int, dim: int, d_in: int, d_out: int, config: ExpertsConfig, shared_output: bool
    ) -> None:
        super().__init__()
        own, shared = config.task_experts, config.shared_experts
        self.progressive = config.wiring == "progressive"
        self.task = _task_bank(queries, dim, d_in, d_out, config) if own else None
        self.shared = create_bank(config.expert, None, shared, d_in, d_out) if shared else None
        # With one expert there is nothing to choose: its gate would never get a gradient.
        self.gate = _gate(queries, dim, d_in, own + shared, config) if own + shared > 1 else None
        self.shared_gate = mlp(d_in, config.gate_hidden, queries * own + shared) if shared_output else None
        self.activation = _ACTIVATIONS[config.activation]()
        if config.expert_init == "similar":
            common = relu_linear(d_in, d_out)
            for bank in (self.task, self.shared):
                if isinstance(bank, LinearBank):
                    bank.init_near(common, _SPREAD)

    def forward(
        self,
        x_task: Tensor,
        x_shared: Tensor | None,
        record: Recorder | None = None,
        queries: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """X_t [K, B, d], and X_s of the same shape if the layer reads it -> O_t [K, B, d_o], and O_s or None.
        Weights made from queries need the `queries` [K, D]."""
        # Eq. 1. The paper feeds the task's vector to the shared experts, PLE the shared stream's.
        x_for_shared = x_shared if self.progressive and x_shared is not None else x_task
        outputs = [] if self.task is None else [_apply(self.task, x_task, queries)]
        if self.shared is not None:
            outputs.append(self.shared(x_for_shared))
        y = self.activation(_join(outputs))  # [K, B, n_t + n_s, d_o]
        # [K, B, n_t + n_s]
        weights = y.new_ones(y.shape[:3]) if self.gate is None else softmax(_apply(self.gate, x_task, queries))
        if record is not None:
            record.gates.append(weights)
        return _mix(weights, y), self._shared_output(x_shared)

    def _shared_output(self, x: Tensor | None) -> Tensor | None:
        """Eq. 2: all experts of all tasks and the shared ones, fed and gated by the shared stream."""
        if self.shared_gate is None or x is None:
            return None
        assert not isinstance(self.task, QueryMadeBank)  # the config excludes a shared stream over made experts
        outputs = [] if self.task is None else [self.task.on_every_query(x)]
        if self.shared is not None:
            outputs.append(self.shared(x))
        y = self.activation(_join(outputs))  # [K, B, K * n_t + n_s, d_o]
        return _mix(self.shared_gate(x).softmax(dim=-1), y)


def _task_bank(queries: int, dim: int, d_in: int, d_out: int, config: ExpertsConfig) -> ExpertBank | QueryMadeBank:
    if config.task_weights == "query":
        return QueryMadeBank(dim, config.task_experts, d_in, d_out, config.weight_rank)
    return create_bank(config.expert, queries, config.task_experts, d_in, d_out)


def _gate(queries: int, dim: int, d_in: int, experts: int, config: ExpertsConfig) -> nn.Module:
    if config.gate_weights == "own":
        return per_query_mlp(queries, d_in, config.gate_hidden, experts)
    if config.gate_weights == "shared":
        return mlp(d_in, config.gate_hidden, experts)
    if config.gate_hidden is None:
        return QueryMadeLinear(dim, d_in, experts, config.weight_rank)
    return QueryMadeMlp(dim, d_in, config.gate_hidden, experts, config.weight_rank)


def _apply(module: Any, x: Tensor, queries: Tensor | None) -> Tensor:
    """A layer on each query's vectors [K, B, d]; if its weights are made from the queries, it gets those too."""
    out: Tensor = module(x, queries) if isinstance(module, QueryMade) else module(x)
    return out


def _join(outputs: list[Tensor]) -> Tensor:
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def _mix(weights: Tensor, y: Tensor) -> Tensor:
    """Weighted sum over experts: [K, B, E], [K, B, E, d_o] -> [K, B, d_o]."""
    if y.shape[2] < _MANY_EXPERTS:
        return (weights.unsqueeze(-1) * y).sum(dim=2)
    return (weights.unsqueeze(2) @ y).squeeze(2)


class LinearExperts(nn.Module):
    """HSQ-Linear: fully connected layers of the same depth and widths, one set for all labels (section 4.1)."""

    def __init__(self, dim: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.out_features = config.widths[-1]
        activation = _ACTIVATIONS[config.activation]
        linear = relu_linear if config.expert_init == "similar" else nn.Linear  # the scale at which HSQ's experts start
        steps = pairwise((dim, *config.widths))
        self.layers = nn.Sequential(*(m for d_in, d_out in steps for m in (linear(d_in, d_out), activation())))

    def forward(self, x: Tensor, record: Recorder | None = None, queries: Tensor | None = None) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class NoExperts(nn.Module):
    """The decoder's output as it is."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out_features = dim

    def forward(self, x: Tensor, record: Recorder | None = None, queries: Tensor | None = None) -> Tensor:
        return x


def create_experts(queries: int, dim: int, config: ExpertsConfig) -> HybridSharing | LinearExperts | NoExperts:
    if config.experts == "hybrid":
        return HybridSharing(queries, dim, config)
    return LinearExperts(dim, config) if config.experts == "linear" else NoExperts(dim)


ExpertFactory = Callable[[int, int], nn.Module]  # (d_in, d_out) -> a module from [..., d_in] to [..., d_out]


class ExpertBank(Protocol):
    """Many small networks d_in -> d_out of the same shape, evaluated at once.

    A bank is shared by all queries (`queries=None`: HSQ's shared experts), or every query has its own (task experts).
    """

    def __call__(self, x: Tensor) -> Tensor:
        """The experts on their queries' vectors: [K, B, d] -> [K, B, experts, d_out]."""

    def on_every_query(self, x: Tensor) -> Tensor:
        """All experts of all queries on each vector: [K, B, d] -> [K, B, K * experts, d_out]. Quadratic in K."""


# nn.Linear is initialized with a deviation of 1 / sqrt(3 d_in); ReLU needs sqrt(2 / d_in) to keep a signal's variance.
_RELU_GAIN = 6**0.5


def relu_linear(d_in: int, d_out: int) -> nn.Linear:
    """A linear layer initialized for ReLU after it."""
    linear = nn.Linear(d_in, d_out)
    with torch.no_grad():
        linear.weight.mul_(_RELU_GAIN)
    return linear


class LinearBank(nn.Module):
    """Linear experts concatenated in one weight: a single (batched) matrix product."""

    def __init__(self, queries: int | None, experts: int, d_in: int, d_out: int) -> None:
        super().__init__()
        width = experts * d_out
        self.d_out = d_out
        self._own = queries is not None
        self.linear = nn.Linear(d_in, width) if queries is None else PerQueryLinear(queries, d_in, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x).unflatten(-1, (-1, self.d_out))
        return out

    @torch.no_grad()
    def init_near(self, one: nn.Linear, spread: float) -> None:
        """Set every expert to `one` (d_in -> d_out) plus `spread` times a random expert of the same scale."""
        assert self.linear.bias is not None
        copies = self.linear.weight.shape[-1 if self._own else 0] // self.d_out
        common = one.weight.repeat(copies, 1)  # [experts * d_out, d_in]
        common = common.T if self._own else common
        self.linear.weight.mul_(spread * _RELU_GAIN).add_(common)
        self.linear.bias.copy_(one.bias.repeat(copies).expand_as(self.linear.bias))

    def on_every_query(self, x: Tensor) -> Tensor:
        assert isinstance(self.linear, PerQueryLinear)
        assert self.linear.bias is not None
        weight = self.linear.weight.transpose(0, 1).flatten(1)  # [d, K * experts * d_out]
        out: Tensor = (x @ weight + self.linear.bias.flatten()).unflatten(-1, (-1, self.d_out))
        return out


class ModuleBank(nn.Module):
    """Experts of any architecture: one template module, its parameters stacked, run by `vmap`."""

    def __init__(self, queries: int | None, experts: int, d_in: int, d_out: int, factory: ExpertFactory) -> None:
        super().__init__()
        stack = (experts,) if queries is None else (queries, experts)
        modules = [factory(d_in, d_out) for _ in range(experts * (queries or 1))]
        if next(modules[0].buffers(), None) is not None:
            raise LabelwiseError("an expert cannot have buffers (batch norm, running statistics); use layer norm")
        for name, _ in modules[0].named_parameters():
            stacked = torch.stack([module.get_parameter(name).detach() for module in modules])
            self.register_parameter(name.replace(".", "-"), nn.Parameter(stacked.unflatten(0, stack)))
        # Only the template's forward is used: on the meta device, inside a tuple, it adds no parameters.
        self._template = (modules[0].to("meta"),)
        self._own = queries is not None

    def _stacked(self) -> dict[str, Tensor]:
        return {name.replace("-", "."): parameter for name, parameter in self.named_parameters()}

    def _expert(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(self._template[0].train(self.training), parameters, (x,))
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self._per_query(self._stacked(), x, own=self._own)

    def on_every_query(self, x: Tensor) -> Tensor:
        return self._per_query({name: value.flatten(0, 1) for name, value in self._stacked().items()}, x, own=False)

    def _per_query(self, parameters: dict[str, Tensor], x: Tensor, own: bool) -> Tensor:
        """For each query, all experts on its vectors. Mapping over queries too keeps the batch size dynamic in
        torch.export: a single vmap with the whole [K, B, d] unmapped would fix B."""
        experts = vmap(self._expert, in_dims=(0, None), out_dims=-2, randomness="different")
        out: Tensor = vmap(experts, in_dims=(0 if own else None, 0), randomness="different")(parameters, x)
        return out


_FACTORIES: dict[str, ExpertFactory] = {"mlp": lambda d_in, d_out: mlp(d_in, d_out, d_out)}


def register_expert(name: str, factory: ExpertFactory) -> None:
    """Make `expert=name` an option of HSQ's experts.

    Args:
        name: Any name but "linear".
        factory: `factory(d_in, d_out)` makes a module from [..., d_in] to [..., d_out] without buffers.

    >>> register_expert("gated", lambda d_in, d_out: nn.Sequential(nn.Linear(d_in, 2 * d_out), nn.GLU()))
    """
    if name == "linear":
        raise LabelwiseError("'linear' is built in; give your expert another name")
    _FACTORIES[name] = factory


def create_bank(expert: str, queries: int | None, experts: int, d_in: int, d_out: int) -> ExpertBank:
    if expert == "linear":
        return LinearBank(queries, experts, d_in, d_out)
    if expert not in _FACTORIES:
        raise unknown_name("expert", expert, ["linear", *_FACTORIES])
    return ModuleBank(queries, experts, d_in, d_out, _FACTORIES[expert])


class QueryMadeBank(QueryMade):
    """Linear experts of every query, made from it."""

    def __init__(self, dim: int, experts: int, in_features: int, out_features: int, rank: int) -> None:
        super().__init__()
        self.experts = experts
        self.linear = QueryMadeLinear(dim, in_features, experts * out_features, rank)

    def forward(self, x: Tensor, queries: Tensor) -> Tensor:  # [K, B, in], [K, D] -> [K, B, experts, out]
        out: Tensor = self.linear(x, queries).unflatten(-1, (self.experts, -1))
        return out


class GateMeter:
    """Sums the gates' weights over all images that run through a module inside `with meter:`.

    It uses hooks on the gates, so images run once and neither logits nor calling code change.

    Args:
        module: A model or head; all its `HybridSharingLayer`s are measured.

    >>> from labelwise import heads
    >>> head = heads.create("hsq", in_features=8, labels=3, dim=16, shared_experts=4).eval()
    >>> with GateMeter(head) as meter:
    ...     _ = head(torch.zeros(2, 8, 3, 3))
    >>> list(meter.total().shape), meter.images
    ([2, 3, 5], 2)
    """

    def __init__(self, module: nn.Module) -> None:
        layers = [part for part in module.modules() if isinstance(part, HybridSharingLayer)]
        # A layer with a single expert has no gate.
        self.gates = [layer.gate for layer in layers if layer.gate is not None]
        self.sums: list[Tensor | None] = [None] * len(self.gates)  # [K, n_t + n_s] each: the query's own experts first
        self.images = 0
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        for number, gate in enumerate(self.gates):
            self._hooks.append(gate.register_forward_hook(lambda _, __, out, n=number: self._add(n, out)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _add(self, number: int, logits: Tensor) -> None:  # [K, B, n_t + n_s]
        weights = logits.detach().float().softmax(dim=-1).sum(dim=1).double()
        before = self.sums[number]
        self.sums[number] = weights if before is None else before + weights
        if number == 0:
            self.images += logits.shape[1]

    def total(self) -> Tensor | None:
        """The sums of all layers, [layers, K, n_t + n_s]; None if there are no gates, or nothing has run."""
        seen = [part for part in self.sums if part is not None]
        return torch.stack(seen).cpu() if seen else None
