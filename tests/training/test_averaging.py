"""Averaged weights against a literal loop."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from labelwise.training.averaging import AveragedWeights


def network() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    module.register_buffer("slots", torch.arange(5))
    return module


@pytest.mark.parametrize("warmup", [False, True])
def test_parameters_and_statistics_are_averaged_and_whole_numbers_copied(warmup: bool) -> None:
    """Both public codes average the batch norms' statistics, which belong to the weights that they were seen with."""
    module = network()
    average = AveragedWeights(module, 0.9, warmup=warmup)
    expected: dict[str, torch.Tensor] = {}
    for step in range(6):
        module[0].weight.data.add_(torch.randn(4, 3))
        module(torch.randn(8, 3) * (step + 1))  # moves the running mean
        average.update(module)
        decay = 0.0 if step == 0 else min(0.9, (1 + step) / (10 + step)) if warmup else 0.9
        for name, value in copy.deepcopy(module.state_dict()).items():
            if value.is_floating_point() and step:
                value = decay * expected[name] + (1 - decay) * value
            expected[name] = value
    for name, value in average.module.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert not torch.equal(average.module[1].running_mean, module[1].running_mean)
    assert torch.equal(average.module.slots, torch.arange(5))


def test_warm_up_forgets_the_first_step() -> None:
    """Of 3,560 updates at 0.9997, the first weights keep 34 % without a warm-up and nothing with it."""
    shares = []
    for warmup in (False, True):
        average = AveragedWeights(nn.Linear(1, 1), 0.9997, warmup=warmup)
        share = 1.0
        for updates in range(1, 3560):
            share *= average.decay_after(updates)
        shares.append(share)
    assert shares[0] == pytest.approx(0.344, abs=0.001)
    assert shares[1] < 1e-9
