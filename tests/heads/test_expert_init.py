"""How experts start decides how much of a signal is left after the gates have averaged them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from labelwise import heads
from labelwise.heads.config import ExpertsConfig
from labelwise.heads.experts import HybridSharing, HybridSharingLayer, LinearBank
from labelwise.training.recipe import OWN_PHOTOS, load_recipe


def signal(start: str, shared_experts: int) -> float:
    """What the layers leave of differences between images: the deviation over the batch, where it was 1 before."""
    torch.manual_seed(0)
    config = ExpertsConfig.parse(
        {"experts": "hybrid", "shared_experts": shared_experts, "expert_init": start}, "experts"
    )
    out: Tensor = HybridSharing(queries=10, dim=256, config=config)(torch.randn(10, 64, 256))
    return float(out.detach().std(dim=1).mean())


@pytest.mark.parametrize("shared_experts", [1, 4, 16, 32])
def test_similar_experts_pass_the_signal_on(shared_experts: int) -> None:
    assert 0.3 < signal("similar", shared_experts) < 1.5  # however many there are
    assert signal("independent", shared_experts) < 0.1 * signal("similar", shared_experts)


def test_similar_is_not_equal() -> None:
    layer = HybridSharingLayer(3, 8, 8, 4, ExpertsConfig(experts="hybrid", shared_experts=2), shared_output=False)
    assert isinstance(layer.task, LinearBank)
    assert isinstance(layer.shared, LinearBank)
    x = torch.randn(1, 5, 8).expand(3, 5, 8)  # the same vectors for every query
    outputs = torch.cat((layer.task(x), layer.shared(x)), dim=2)  # [K, B, n_t + n_s, d_o]
    first = outputs[:1, :, :1]
    apart = (outputs - first).norm() / (first.norm() * outputs[0, 0, :, 0].numel() ** 0.5 * 3**0.5)
    assert 0.02 < float(apart) < 0.5
    distinct = {tuple(row.tolist()) for row in outputs[:, 0].flatten(0, 1).detach()}
    assert len(distinct) == 3 + 2  # one own expert for each of three queries, two shared ones


@pytest.mark.parametrize(("own", "shared"), [(0, 2), (2, 0), (1, 1)])
def test_every_mixture_of_experts_can_start_similar(own: int, shared: int) -> None:
    head = heads.create("hsq", in_features=8, labels=3, dim=16, task_experts=own, shared_experts=shared)
    assert torch.isfinite(head(torch.randn(2, 8, 3, 3))).all()


def test_the_old_name_and_value_are_still_read() -> None:
    """`expert_start: alike` stands in models and recipes that were written before it was called `expert_init`."""
    assert ExpertsConfig.parse({"expert_start": "alike"}, "experts").expert_init == "similar"
    assert ExpertsConfig.parse({"expert_start": "independent"}, "experts").expert_init == "independent"
    head = heads.create("hsq", in_features=8, labels=3, dim=16, expert_start="independent")
    assert head.config.experts.expert_init == "independent"
    recipe = load_recipe(None, {"model.options.expert_start": "alike"})
    assert recipe.model.options["expert_init"] == "alike"
    assert load_recipe(None, {"model.head": "hsq", "model.options.expert_start": "independent"}).model.options == {
        **OWN_PHOTOS.model.options,
        "expert_init": "independent",
    }
