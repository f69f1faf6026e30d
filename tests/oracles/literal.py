"""HSQ's Algorithm 1 written out loop by loop, as the paper prints it: the yardstick for tests and benchmarks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelwise.heads.experts import HybridSharing, HybridSharingLayer, LinearBank
from labelwise.heads.layers import PerQueryLinear


class LiteralLayer(nn.Module):
    """One hybrid sharing layer with linear experts and gates; inputs and outputs are [B, L, d]."""

    def __init__(self, labels: int, d_in: int, d_out: int, shared: int, own: int) -> None:
        super().__init__()
        self.labels, self.shared, self.own = labels, shared, own
        self.task_experts = nn.ModuleList(nn.Linear(d_in, d_out) for _ in range(labels * own))  # label by label
        self.shared_experts = nn.ModuleList(nn.Linear(d_in, d_out) for _ in range(shared))
        self.task_gates = nn.ModuleList(nn.Linear(d_in, own + shared) for _ in range(labels))
        self.shared_gate = nn.Linear(d_in, labels * own + shared)
        self.with_shared_output = True  # False: only what the logits read

    def forward(self, x_task: Tensor, x_shared: Tensor) -> tuple[Tensor, Tensor]:
        y_shared: list[Tensor] = []
        y_task: list[list[Tensor]] = [[] for _ in range(self.labels)]
        for i in range(self.labels):
            for j in range(self.own):
                if self.with_shared_output:
                    y_shared.append(self.task_experts[i * self.own + j](x_shared))
                y_task[i].append(self.task_experts[i * self.own + j](x_task[:, i]))
        for j in range(self.shared):
            if self.with_shared_output:
                y_shared.append(self.shared_experts[j](x_shared))
            for i in range(self.labels):
                y_task[i].append(self.shared_experts[j](x_task[:, i]))
        o_shared = x_shared
        if self.with_shared_output:
            a_shared = self.shared_gate(x_shared).softmax(dim=-1)  # [B, L, L * n_t + n_s]
            o_shared = (a_shared[..., None] * torch.stack(y_shared, dim=2).relu()).sum(dim=2)
        o_task = []
        for i in range(self.labels):
            a = self.task_gates[i](x_task[:, i]).softmax(dim=-1)  # [B, n_t + n_s]
            o_task.append((a[..., None] * torch.stack(y_task[i], dim=1).relu()).sum(dim=1))
        return torch.stack(o_task, dim=1), o_shared


class LiteralHybridSharing(nn.Module):
    def __init__(self, layers: list[LiteralLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x_task, x_shared = x, x
        for layer in self.layers:
            x_task, x_shared = layer(x_task, x_shared)
        return x_task, x_shared


@torch.no_grad()
def literal_copy(
    ours: HybridSharing, labels: int, shared: int, own: int, *, shared_output: bool = True
) -> LiteralHybridSharing:
    """The same layers with the same weights, as loops. `ours` needs linear experts, linear gates and ReLU."""
    layers = [
        _literal_layer(layer, labels, shared, own) for layer in ours.layers if isinstance(layer, HybridSharingLayer)
    ]
    for layer in layers:
        layer.with_shared_output = shared_output
    return LiteralHybridSharing(layers)


def _literal_layer(ours: HybridSharingLayer, labels: int, shared: int, own: int) -> LiteralLayer:
    bank = ours.shared if own == 0 else ours.task
    assert isinstance(bank, LinearBank)
    d_out = bank.d_out
    layer = LiteralLayer(labels, bank.linear.weight.shape[1], d_out, shared, own)
    if own:
        assert isinstance(ours.task, LinearBank)
        assert isinstance(ours.task.linear, PerQueryLinear)
        for i in range(labels):
            for j in range(own):
                columns = slice(j * d_out, (j + 1) * d_out)
                _copy_query(layer.task_experts[i * own + j], ours.task.linear, i, columns)
    if shared:
        assert isinstance(ours.shared, LinearBank)
        for j in range(shared):
            rows = slice(j * d_out, (j + 1) * d_out)
            expert = layer.shared_experts[j]
            assert isinstance(expert, nn.Linear)
            expert.weight.copy_(ours.shared.linear.weight[rows])
            assert ours.shared.linear.bias is not None
            expert.bias.copy_(ours.shared.linear.bias[rows])
    if ours.gate is not None:
        assert isinstance(ours.gate, PerQueryLinear)
        for i in range(labels):
            _copy_query(layer.task_gates[i], ours.gate, i, slice(None))
    if ours.shared_gate is not None:
        layer.shared_gate.load_state_dict(ours.shared_gate.state_dict())
    return layer


def _copy_query(linear: nn.Module, ours: PerQueryLinear, query: int, columns: slice) -> None:
    """One query's weights, or some columns of them, into a layer of its own."""
    assert isinstance(linear, nn.Linear)
    assert ours.bias is not None
    linear.weight.copy_(ours.weight[query, :, columns].T)
    linear.bias.copy_(ours.bias[query, 0, columns])
