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

from labelwise.core.errors import LabelwiseError, unknown_name


class PerQueryLinear(nn.Module):
    def __init__(self, queries: int, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        bound = in_features**-0.5  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(queries, in_features, out_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(queries, 1, out_features).uniform_(-bound, bound)) if bias else None

    def forward(self, x: Tensor) -> Tensor:  # [K, B, in] -> [K, B, out]
        return torch.bmm(x, self.weight) if self.bias is None else torch.baddbmm(self.bias, x, self.weight)


def per_query_mlp(
    queries: int, in_features: int, hidden: int | None, out_features: int, bias: bool = True
) -> nn.Module:
    """A linear layer per query, or with `hidden` an MLP per query with one hidden layer."""
    if hidden is None:
        return PerQueryLinear(queries, in_features, out_features, bias)
    return nn.Sequential(
        PerQueryLinear(queries, in_features, hidden), nn.ReLU(), PerQueryLinear(queries, hidden, out_features, bias)
    )


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


class QueryMade(nn.Module):
    """A layer that is called with the vectors and with the queries whose weights it makes."""


class QueryMadeLinear(QueryMade):
    """y = V (s * (U x)) + B q, with s = S q + 1: query q's weight matrix is V diag(s) U, of a chosen rank.

    As in ML-Decoder's eq. 6 the part that is learned is shared by all labels and the label's vector picks its own from
    it; the matrices of the labels are never written out. With s = 1 it is the same layer for all labels, and the words
    bend it.
    """

    def __init__(self, dim: int, in_features: int, out_features: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(in_features, rank, bias=False)  # U
        self.scale = nn.Linear(dim, rank)  # S
        self.up = nn.Linear(rank, out_features)  # V
        self.shift = nn.Linear(dim, out_features, bias=False)  # B
        nn.init.ones_(self.scale.bias)

    def forward(self, x: Tensor, queries: Tensor) -> Tensor:  # [K, B, in], [K, D] -> [K, B, out]
        mixed = self.down(x) * self.scale(queries)[:, None]
        out: Tensor = self.up(mixed) + self.shift(queries)[:, None]
        return out


class QueryMadeMlp(QueryMade):
    """One hidden layer, both matrices made from the query."""

    def __init__(self, dim: int, in_features: int, hidden: int, out_features: int, rank: int) -> None:
        super().__init__()
        self.first = QueryMadeLinear(dim, in_features, hidden, rank)
        self.last = QueryMadeLinear(dim, hidden, out_features, rank)

    def forward(self, x: Tensor, queries: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.first(x, queries)), queries)
        return out


class QueryMadeBank(QueryMade):
    """Every query's own linear experts, made from it: see `expert_banks`."""

    def __init__(self, dim: int, experts: int, in_features: int, out_features: int, rank: int) -> None:
        super().__init__()
        self.experts = experts
        self.linear = QueryMadeLinear(dim, in_features, experts * out_features, rank)

    def forward(self, x: Tensor, queries: Tensor) -> Tensor:  # [K, B, in], [K, D] -> [K, B, experts, out]
        out: Tensor = self.linear(x, queries).unflatten(-1, (self.experts, -1))
        return out
