"""How heads start: experts that pass a signal on through the gates, and the scales of the public codes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from labelwise import heads
from labelwise.heads.config import ExpertsConfig
from labelwise.heads.experts import HybridSharing, HybridSharingLayer, LinearBank
from labelwise.heads.query_head import QueryHead
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


@pytest.mark.parametrize("start", ["similar", "independent"])
def test_plain_layers_start_at_the_scale_of_the_experts(start: str) -> None:
    """Otherwise HSQ-Linear would differ from HSQ in more than its experts."""
    torch.manual_seed(0)
    options = {"in_features": 8, "labels": 3, "dim": 64, "widths": (64, 64), "expert_init": start}
    experts = heads.create("hsq", **options).state_dict()
    layers = heads.create("hsq-linear", **options).state_dict()
    for number in (0, 1):
        shared = experts[f"experts.layers.{number}.shared.linear.weight"]
        assert float(shared.std() / layers[f"experts.layers.{2 * number}.weight"].std()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("labels", "groups", "ours_before"), [(80, 80, 0.43), (80, 20, 0.83), (9600, 100, 4.25)])
def test_the_group_classifier_starts_as_in_the_public_codes(labels: int, groups: int, ours_before: float) -> None:
    """Xavier-normal over [K, D, g]: the deviation sqrt(2 / (g (K + D))), where nn.Linear would have 1 / sqrt(3 D)."""
    torch.manual_seed(0)
    published = nn.init.xavier_normal_(torch.empty(groups, 768, labels // groups)).std()

    def deviation(**options: str) -> float:
        head = heads.create("ml-decoder", in_features=8, labels=labels, groups=groups, **options)
        return float(head.get_parameter("classifier.weights.weight").std())

    assert deviation() == pytest.approx(float(published), rel=0.02)
    assert deviation(classifier_init="linear") == pytest.approx(ours_before * float(published), rel=0.02)


def test_layers_of_query2label_start_as_in_its_code() -> None:
    torch.manual_seed(0)
    head = heads.create("q2l", in_features=8, labels=3, dim=64)
    assert isinstance(head, QueryHead)
    for part in (head.tokens.encoder, head.decoder):
        for name, parameter in part.named_parameters():
            if parameter.dim() > 1:
                bound = (6 / sum(parameter.shape)) ** 0.5
                assert float(parameter.detach().abs().max()) == pytest.approx(bound, rel=0.02), name
    torch_bound = 64**-0.5
    assert heads.create("hsq", in_features=8, labels=3, dim=64).get_parameter(
        "decoder.layers.0.linear1.weight"
    ).detach().abs().max() == pytest.approx(torch_bound, rel=0.02)
