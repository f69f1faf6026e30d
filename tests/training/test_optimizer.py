from __future__ import annotations

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st

import labelwise as lw
from labelwise.training.checkpoint import optimizer_tensors, restore_optimizer
from labelwise.training.optimizer import create_optimizer, momentum_at, rate_at, set_rate
from labelwise.training.recipe import OptimizerRecipe, ScheduleRecipe


@pytest.mark.parametrize(("steps", "warmup"), [(50, 0.2), (37, 0.3), (400, 0.05)])
def test_one_cycle_is_torchs_and_so_is_its_momentum(steps: int, warmup: float) -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=steps, pct_start=warmup, final_div_factor=1e12
    )
    recipe = ScheduleRecipe(name="one-cycle", warmup=warmup, momentum=(0.95, 0.85))
    ours = create_optimizer(torch.nn.Linear(1, 1), OptimizerRecipe(lr=2.0))
    for step in range(steps):
        set_rate(ours, rate_at(step, steps, recipe), momentum_at(step, steps, recipe))
        (expected,) = optimizer.param_groups
        for group in ours.param_groups:
            assert group["lr"] == pytest.approx(2 * expected["lr"], abs=1e-9), step
            assert group["betas"] == pytest.approx(expected["betas"], abs=1e-9), step
        optimizer.step()
        reference.step() if step + 1 < steps else None


@given(
    name=st.sampled_from(["one-cycle", "cosine", "constant"]),
    steps=st.integers(1, 200),
    warmup=st.floats(0, 0.9),
    final=st.floats(0, 1),
)
def test_rates_stay_between_nothing_and_the_highest(name: str, steps: int, warmup: float, final: float) -> None:
    recipe = ScheduleRecipe(name=name, warmup=warmup, final=final)  # type: ignore[arg-type]
    rates = [rate_at(step, steps, recipe) for step in range(steps)]
    assert all(0 <= rate <= 1 + 1e-9 for rate in rates)
    assert max(rates) > 0, "nothing would be learned"
    if name != "constant" and steps > 1:
        assert rates[-1] == pytest.approx(final, abs=1e-6)


def test_decay_spares_biases_norms_and_queries() -> None:
    model = lw.create_model("test_resnet", "hsq", 5, weights="none", dim=16, attention_heads=2)
    recipe = OptimizerRecipe(lr=1e-3, backbone_lr=1e-5, weight_decay=0.1)
    optimizer = create_optimizer(model, recipe)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {
        (group["lr"], group["weight_decay"]): {names[id(p)] for p in group["params"]}
        for group in optimizer.param_groups
    }
    assert set(groups) == {(1e-3, 0.1), (1e-3, 0.0), (1e-5, 0.1), (1e-5, 0.0)}
    assert "head.queries.weight" in groups[1e-3, 0.0]
    assert "head.experts.layers.0.task.linear.bias" in groups[1e-3, 0.0]  # [K, 1, d]: a bias for all its dimensions
    assert "head.experts.layers.0.task.linear.weight" in groups[1e-3, 0.1]
    assert "backbone.model.bn1.weight" in groups[1e-5, 0.0]
    assert "backbone.model.conv1.0.weight" in groups[1e-5, 0.1]
    assert sum(len(group) for group in groups.values()) == len(list(model.parameters()))
    everything = create_optimizer(model, recipe.model_copy(update={"decay_all": True}))  # Query2Label's AdamW
    assert {group["weight_decay"] for group in everything.param_groups} == {0.1}


def lamb_steps(optimizer: torch.optim.Optimizer, layer: torch.nn.Module, first: int, last: int) -> None:
    for step in range(first, last):
        torch.manual_seed(step)
        optimizer.zero_grad()
        layer(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()


def lamb_and_layer() -> tuple[torch.optim.Optimizer, torch.nn.Module]:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3)
    return create_optimizer(layer, OptimizerRecipe(name="lamb", lr=0.05, weight_decay=0.02)), layer


def test_lamb_is_timms_and_goes_on_from_a_checkpoint() -> None:
    ours, layer = lamb_and_layer()
    lamb_steps(ours, layer, 0, 6)

    torch.manual_seed(0)
    other = torch.nn.Linear(4, 3)
    groups = [{"params": [other.weight], "weight_decay": 0.02}, {"params": [other.bias], "weight_decay": 0.0}]
    lamb_steps(timm.optim.Lamb(groups, lr=0.05, max_grad_norm=None), other, 0, 6)
    torch.testing.assert_close(layer.weight, other.weight)
    torch.testing.assert_close(layer.bias, other.bias)

    stopped, half = lamb_and_layer()
    lamb_steps(stopped, half, 0, 3)
    saved = optimizer_tensors(half, stopped)
    resumed, fresh = lamb_and_layer()
    fresh.load_state_dict(half.state_dict())
    restore_optimizer(fresh, resumed, saved)
    lamb_steps(resumed, fresh, 3, 6)
    assert torch.equal(fresh.weight, layer.weight)
    assert torch.equal(fresh.bias, layer.bias)
