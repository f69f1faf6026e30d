"""HSQ's hybrid sharing layers against Algorithm 1 as printed, and the facts that follow from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from labelwise import heads
from labelwise.core.errors import LabelwiseError
from labelwise.heads.base import Recorder
from labelwise.heads.config import ExpertsConfig
from labelwise.heads.experts import HybridSharing, LinearBank, ModuleBank
from tests.oracles.literal import literal_copy

LABELS, DIM, BATCH = 7, 12, 3
COUNTS = [(1, 1), (4, 2), (16, 1), (0, 1), (0, 3), (1, 0), (5, 0)]  # n_s, n_t


def layers(**options: Any) -> HybridSharing:
    return HybridSharing(LABELS, DIM, ExpertsConfig(experts="hybrid", **{"widths": (8, 5), **options}))


@pytest.mark.parametrize(("shared", "own"), COUNTS)
def test_batched_equals_the_literal_loop(shared: int, own: int) -> None:
    ours = layers(shared_experts=shared, task_experts=own, shared_stream=True)
    literal = literal_copy(ours, LABELS, shared, own)
    x = torch.randn(BATCH, LABELS, DIM)
    record = Recorder()
    task_output = ours(x.transpose(0, 1), record).transpose(0, 1)
    expected_task, expected_shared = literal(x)
    assert record.shared is not None
    torch.testing.assert_close(task_output, expected_task, atol=1e-6, rtol=0)
    torch.testing.assert_close(record.shared.transpose(0, 1), expected_shared, atol=1e-6, rtol=0)


@pytest.mark.parametrize("wiring", ["paper", "progressive"])
def test_the_shared_stream_gets_gradients_only_when_it_flows(wiring: str) -> None:
    """Algorithm 1's O_s feeds only the next O_s: the classifier never reads it. PLE's does reach the next layer."""
    stack = layers(shared_experts=4, wiring=wiring, shared_stream=True)
    stack(torch.randn(LABELS, BATCH, DIM)).square().sum().backward()
    gates = [layer.shared_gate.weight.grad for layer in stack.layers]
    reached = [grad is not None and bool(grad.any()) for grad in gates]
    assert reached == ([False, False] if wiring == "paper" else [True, False])


def test_leaving_the_shared_stream_out_changes_neither_logits_nor_gradients() -> None:
    with_stream = layers(shared_experts=4, shared_stream=True)
    without = layers(shared_experts=4)
    without.load_state_dict({k: v for k, v in with_stream.state_dict().items() if "shared_gate" not in k})
    x = torch.randn(LABELS, BATCH, DIM)
    outputs = [stack(x) for stack in (with_stream, without)]
    assert torch.equal(*outputs)
    for output in outputs:
        output.square().sum().backward()
    expected = dict(with_stream.named_parameters())
    for name, parameter in without.named_parameters():
        assert torch.equal(parameter.grad, expected[name].grad), name


def test_progressive_wiring_feeds_the_shared_experts_from_the_shared_stream() -> None:
    """Literal PLE for two layers, label by label."""
    stack = layers(shared_experts=3, task_experts=2, wiring="progressive", widths=(6, 4))
    x = torch.randn(LABELS, BATCH, DIM)
    first, second = stack.layers
    task_1, shared_1 = first(x, x)
    expected = []
    for i in range(LABELS):
        own = second.task(task_1)[i]  # [B, n_t, d_o]
        common = second.shared.linear(shared_1[i]).unflatten(-1, (3, 4))
        weights = second.gate(task_1)[i].softmax(dim=-1)
        expected.append((weights[..., None] * torch.cat((own, common), dim=1).relu()).sum(dim=1))
    torch.testing.assert_close(stack(x), torch.stack(expected), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(shared_1, task_1)


@pytest.mark.parametrize(("shared", "own"), COUNTS)
def test_gate_weights_are_on_request_and_sum_to_one(shared: int, own: int) -> None:
    head = heads.create(
        "hsq", in_features=8, labels=LABELS, dim=8, attention_heads=2, shared_experts=shared, task_experts=own
    )
    details = head.details(torch.randn(BATCH, 8, 2, 3))
    assert [g.shape for g in details.gates] == [(BATCH, LABELS, own + shared)] * 2
    for gate in details.gates:
        torch.testing.assert_close(gate.sum(dim=-1), torch.ones(BATCH, LABELS))
    assert details.shared is None


def test_mlp_gates_and_the_large_model_of_section_4_2() -> None:
    head = heads.create(
        "hsq", in_features=64, labels=80, widths=(1024, 512), gate_hidden=128, classifier_hidden=64, shared_experts=1
    )
    gate = head.experts.layers[0].gate
    assert [tuple(m.weight.shape) for m in (gate[0], gate[2])] == [(80, 64, 128), (80, 128, 2)]
    hidden = head.classifier.weights
    assert [tuple(m.weight.shape) for m in (hidden[0], hidden[2])] == [(80, 512, 64), (80, 64, 1)]


@pytest.mark.parametrize("queries", [None, LABELS])
def test_any_module_can_be_an_expert(queries: int | None) -> None:
    """The stacked, vmapped bank against calling separate modules with the same weights one by one."""

    def factory(d_in: int, d_out: int) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(d_in), nn.Linear(d_in, 6), nn.Tanh(), nn.Linear(6, d_out))

    bank = ModuleBank(queries, 3, DIM, 4, factory)
    x = torch.randn(LABELS, BATCH, DIM)
    stacked = {name.replace("-", "."): p for name, p in bank.named_parameters()}
    for k in range(LABELS):
        for j in range(3):
            one = factory(DIM, 4)
            where = (j,) if queries is None else (k, j)
            one.load_state_dict({name: p[where] for name, p in stacked.items()})
            torch.testing.assert_close(bank(x)[k, :, j], one(x[k]), atol=1e-6, rtol=1e-5)
            if queries is not None:
                every = bank.on_every_query(x)
                torch.testing.assert_close(every[:, :, 3 * k + j], one(x), atol=1e-6, rtol=1e-5)


def test_linear_modules_in_a_bank_equal_the_linear_bank() -> None:
    bank = ModuleBank(LABELS, 2, DIM, 4, lambda d_in, d_out: nn.Linear(d_in, d_out))
    fast = LinearBank(LABELS, 2, DIM, 4)
    with torch.no_grad():
        fast.linear.weight.copy_(bank.weight.permute(0, 3, 1, 2).flatten(2))
        fast.linear.bias.copy_(bank.bias.flatten(1)[:, None])
    x = torch.randn(LABELS, BATCH, DIM)
    torch.testing.assert_close(fast(x), bank(x), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(fast.on_every_query(x), bank.on_every_query(x), atol=1e-6, rtol=1e-5)


def test_registered_experts_are_found_by_name() -> None:
    heads.register_expert(
        "wide", lambda d_in, d_out: nn.Sequential(nn.Linear(d_in, 30), nn.GELU(), nn.Linear(30, d_out))
    )
    head = heads.create("hsq", in_features=8, labels=LABELS, dim=8, attention_heads=2, expert="wide")
    assert head(torch.randn(2, 8, 3, 3)).shape == (2, LABELS)
    with pytest.raises(LabelwiseError, match="built in"):
        heads.register_expert("linear", lambda d_in, d_out: nn.Linear(d_in, d_out))


def test_experts_with_buffers_are_refused() -> None:
    heads.register_expert("bn", lambda d_in, d_out: nn.Sequential(nn.Linear(d_in, d_out), nn.BatchNorm1d(d_out)))
    with pytest.raises(LabelwiseError, match="buffers"):
        heads.create("hsq", in_features=8, labels=LABELS, dim=8, attention_heads=2, expert="bn")
