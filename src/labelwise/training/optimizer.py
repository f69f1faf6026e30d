"""Optimizer and learning rate. The rate is a function of the step alone, so there is no scheduler state to lose."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from timm.optim import Lamb
from torch import nn

from labelwise.backbones.timm_backbone import ordered_groups
from labelwise.model.model import LabelModel
from labelwise.training.recipe import OptimizerRecipe, ScheduleRecipe

_ONE_CYCLE_START = 1 / 25  # the first rate as a share of the highest, as in torch's OneCycleLR


def create_optimizer(model: nn.Module, recipe: OptimizerRecipe, fused: bool = True) -> torch.optim.Optimizer:
    """An optimizer with one group per learning rate and decay. `peak_lr` of a group is what `set_rate` scales."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    backbone = backbone_rates(model, recipe)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rate = backbone.get(parameter, recipe.lr)
            decay = recipe.weight_decay if recipe.decay_all or decays(name, parameter) else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
    parameters = [
        {"params": members, "lr": rate, "peak_lr": rate, "weight_decay": decay}
        for (rate, decay), members in groups.items()
    ]
    if recipe.name == "lamb":
        # By default it clips the gradient norm to 1; here the loop does that, by `clip_norm`.
        return ResumableLamb(parameters, betas=recipe.betas, max_grad_norm=None)
    if recipe.name == "sgd":
        return torch.optim.SGD(parameters, momentum=recipe.momentum, fused=fused)
    kind = torch.optim.AdamW if recipe.name == "adamw" else torch.optim.Adam
    return kind(parameters, betas=recipe.betas, fused=fused)


def backbone_rates(model: nn.Module, recipe: OptimizerRecipe) -> dict[nn.Parameter, float]:
    """The highest rate of each parameter of the backbone. With `layer_decay`, the last layer has the full rate, the one
    before it `layer_decay` times that, and so on."""
    if not isinstance(model, LabelModel):
        return {}
    rate = recipe.backbone_lr or recipe.lr
    if recipe.layer_decay == 1:
        return dict.fromkeys(model.backbone.parameters(), rate)
    layers = reversed(ordered_groups(model.backbone.model, coarse=False))
    return {parameter: rate * recipe.layer_decay**depth for depth, layer in enumerate(layers) for parameter in layer}


class ResumableLamb(Lamb):  # type: ignore[misc]  # timm carries no types
    """timm's LAMB counts its steps in the parameter groups, which a checkpoint does not hold. Here the count is part of
    each parameter's state, as in torch's optimizers."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        for group in self.param_groups:
            counts = [self.state[p]["step"] for p in group["params"] if "step" in self.state[p]]
            if counts:
                group["step"] = counts[0].detach().cpu().clone()
        loss: float | None = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if self.state[parameter]:
                    self.state[parameter]["step"] = group["step"].clone()
        return loss


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: to weights of layers, not to biases, norms and queries."""
    return parameter.dim() > 1 and not name.endswith("bias") and not name.endswith("queries.weight")


def rate_at(step: int, steps: int, recipe: ScheduleRecipe) -> float:
    """The learning rate of a step as a fraction of the highest one.

    >>> recipe = ScheduleRecipe(name="cosine", warmup=0.25)
    >>> [round(rate_at(step, 8, recipe), 3) for step in range(8)]
    [0.5, 1.0, 0.933, 0.75, 0.5, 0.25, 0.067, 0.0]
    >>> steps = ScheduleRecipe(name="step", warmup=0, drops=(0.5, 0.75))
    >>> [round(rate_at(step, 8, steps), 3) for step in range(8)]
    [1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    """
    if steps == 1:  # the only step would have the final rate, often 0
        return 1.0
    rise = recipe.warmup * steps
    if recipe.name == "one-cycle":  # torch's OneCycleLR counts its two phases between the first and the last step
        rise, last = rise - 1, steps - 1
        if step <= rise:
            return _cosine(step / rise if rise > 0 else 1.0, _ONE_CYCLE_START, 1.0)
        return _cosine((step - rise) / (last - rise), 1.0, recipe.final)
    rise = min(math.ceil(rise), steps - 1)  # the last step has the final rate, even of two
    if step < rise:
        return (step + 1) / rise
    if recipe.name in ("constant", "step"):
        return 0.1 ** sum(step >= share * steps for share in recipe.drops)
    return _cosine((step - rise + 1) / (steps - rise), 1.0, recipe.final)


def momentum_at(step: int, steps: int, recipe: ScheduleRecipe) -> float | None:
    """The first beta of a step, if the schedule changes it: high while the rate is low, as in torch's OneCycleLR.

    >>> recipe = ScheduleRecipe(warmup=0.5, momentum=(0.95, 0.85))
    >>> [round(momentum_at(step, 8, recipe), 3) for step in range(8)]
    [0.95, 0.925, 0.875, 0.85, 0.865, 0.9, 0.935, 0.95]
    """
    if recipe.momentum is None or steps == 1:
        return None
    high, low = recipe.momentum
    rise, last = recipe.warmup * steps - 1, steps - 1
    if step <= rise:
        return _cosine(step / rise if rise > 0 else 1.0, high, low)
    return _cosine((step - rise) / (last - rise), low, high)


def set_rate(optimizer: torch.optim.Optimizer, share: float, momentum: float | None = None) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * share
        if momentum is not None and "momentum" in group:  # SGD's
            group["momentum"] = momentum
        elif momentum is not None:
            group["betas"] = (momentum, group["betas"][1])


def _cosine(progress: float, start: float, end: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
