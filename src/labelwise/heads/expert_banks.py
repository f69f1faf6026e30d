"""Banks of experts: many small networks d_in -> d_out of the same shape, all evaluated at once.

A bank belongs to everybody (`queries=None`: HSQ's shared experts) or to each query its own (task experts). Vectors come
query-major, [K, B, d], because a query's own weights then meet its whole batch in one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from labelwise.errors import LabelwiseError, unknown_name
from labelwise.heads.per_query import PerQueryLinear

ExpertFactory = Callable[[int, int], nn.Module]  # (d_in, d_out) -> a module from [..., d_in] to [..., d_out]


class ExpertBank(Protocol):
    def __call__(self, x: Tensor) -> Tensor:
        """Everybody's bank or each query's own on its own vector: [K, B, d] -> [K, B, experts, d_out]."""

    def on_every_query(self, x: Tensor) -> Tensor:
        """All experts of all queries on each vector: [K, B, d] -> [K, B, K * experts, d_out]. Quadratic in K."""


# nn.Linear starts with a deviation of 1 / sqrt(3 d_in); ReLU wants sqrt(2 / d_in) to pass signals on at full strength.
_RELU_GAIN = 6**0.5


def first_expert(d_in: int, d_out: int) -> nn.Linear:
    """A linear map at the scale that keeps a signal's strength through ReLU, to start experts from."""
    expert = nn.Linear(d_in, d_out)
    with torch.no_grad():
        expert.weight.mul_(_RELU_GAIN)
    return expert


class LinearBank(nn.Module):
    """Linear experts side by side in one weight: a single (batched) matrix product."""

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
    def start_near(self, one: nn.Linear, spread: float) -> None:
        """Every expert becomes `one` (d_in -> d_out) plus `spread` times a random expert of the same scale."""
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
        # The template only lends its forward: on the meta device, inside a tuple, it brings no parameters of its own.
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
        """For each query, all experts on its vectors. (Mapping over queries too is what keeps the batch size free in
        torch.export: a single vmap with the whole [K, B, d] unmapped fixes B.)"""
        experts = vmap(self._expert, in_dims=(0, None), out_dims=-2, randomness="different")
        out: Tensor = vmap(experts, in_dims=(0 if own else None, 0), randomness="different")(parameters, x)
        return out


def _mlp(d_in: int, d_out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(d_in, d_out), nn.ReLU(), nn.Linear(d_out, d_out))


_FACTORIES: dict[str, ExpertFactory] = {"mlp": _mlp}


def register_expert(name: str, factory: ExpertFactory) -> None:
    """Make `expert=name` mean `factory(d_in, d_out)`: any module from [..., d_in] to [..., d_out] without buffers."""
    if name == "linear":
        raise LabelwiseError("'linear' is built in; give your expert another name")
    _FACTORIES[name] = factory


def create_bank(expert: str, queries: int | None, experts: int, d_in: int, d_out: int) -> ExpertBank:
    if expert == "linear":
        return LinearBank(queries, experts, d_in, d_out)
    if expert not in _FACTORIES:
        raise unknown_name("expert", expert, ["linear", *_FACTORIES])
    return ModuleBank(queries, experts, d_in, d_out, _FACTORIES[expert])
