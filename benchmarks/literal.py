"""HSQ's Algorithm 1 written out loop by loop, as the paper prints it: the yardstick for tests and benchmarks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelwise.heads.expert_banks import LinearBank
from labelwise.heads.experts import HybridSharing, HybridSharingLayer
from labelwise.heads.per_query import PerQueryLinear


class LiteralLayer(nn.Module):
    """One hybrid sharing layer with linear experts and gates; inputs and outputs are [B, L, d]."""

    def __init__(self, labels: int, d_in: int, d_out: int, shared: int, own: int) -> None:
        super().__init__()
        self.labels, self.shared, self.own = labels, shared, own
        self.task_experts = nn.ModuleList(
            nn.ModuleList(nn.Linear(d_in, d_out) for _ in range(own)) for _ in range(labels)
        )
        self.shared_experts = nn.ModuleList(nn.Linear(d_in, d_out) for _ in range(shared))
        self.task_gates = nn.ModuleList(nn.Linear(d_in, own + shared) for _ in range(labels))
        self.shared_gate = nn.Linear(d_in, labels * own + shared)
        self.with_shared_output = True

    def forward(self, x_task: Tensor, x_shared: Tensor) -> tuple[Tensor, Tensor]:
        y_shared: list[Tensor] = []
        y_task: list[list[Tensor]] = [[] for _ in range(self.labels)]
        for i in range(self.labels):
            for j in range(self.own):
                if self.with_shared_output:
                    y_shared.append(self.task_experts[i][j](x_shared))
                y_task[i].append(self.task_experts[i][j](x_task[:, i]))
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
def literal_copy(ours: HybridSharing, labels: int, shared: int, own: int) -> LiteralHybridSharing:
    """The same layers with the same weights, as loops. `ours` needs linear experts, linear gates and ReLU."""
    return LiteralHybridSharing([_literal_layer(layer, labels, shared, own) for layer in ours.layers])


def _literal_layer(ours: HybridSharingLayer, labels: int, shared: int, own: int) -> LiteralLayer:
    bank = ours.shared if own == 0 else ours.task
    assert isinstance(bank, LinearBank)
    d_out = bank.d_out
    d_in = bank.linear.weight.shape[1]
    layer = LiteralLayer(labels, d_in, d_out, shared, own)
    if own:
        assert isinstance(ours.task, LinearBank)
        for i in range(labels):
            for j in range(own):
                columns = slice(j * d_out, (j + 1) * d_out)
                layer.task_experts[i][j].weight.copy_(ours.task.linear.weight[i, :, columns].T)
                layer.task_experts[i][j].bias.copy_(ours.task.linear.bias[i, 0, columns])
    if shared:
        assert isinstance(ours.shared, LinearBank)
        for j in range(shared):
            rows = slice(j * d_out, (j + 1) * d_out)
            layer.shared_experts[j].weight.copy_(ours.shared.linear.weight[rows])
            layer.shared_experts[j].bias.copy_(ours.shared.linear.bias[rows])
    if ours.gate is not None:
        assert isinstance(ours.gate, PerQueryLinear)
        for i in range(labels):
            layer.task_gates[i].weight.copy_(ours.gate.weight[i].T)
            layer.task_gates[i].bias.copy_(ours.gate.bias[i, 0])
    if ours.shared_gate is not None:
        layer.shared_gate.load_state_dict(ours.shared_gate.state_dict())
    return layer
