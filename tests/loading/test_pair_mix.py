"""Two photos as one scene: the maps and the labels of both."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import labelwise as lw
from labelwise import LabelwiseError, heads
from labelwise.loading.augment import draw_partners, join_pairs, label_union
from labelwise.training import load_recipe
from labelwise.training.check import check

TRUTH = st.lists(st.sampled_from([1, 0, -1]), min_size=3, max_size=3)


@given(TRUTH, TRUTH)
def test_the_labels_of_a_scene(a: list[int], b: list[int]) -> None:
    """What -1 stands for may be 1 or 0: the union is known where it is the same for all of these, and only there."""

    def possible(value: int) -> set[int]:
        return {0, 1} if value < 0 else {value}

    for one, other, union in zip(a, b, label_union(torch.tensor(a), torch.tensor(b)).tolist(), strict=True):
        outcomes = {max(x, y) for x in possible(one) for y in possible(other)}
        assert outcomes == possible(union)


def test_partners_bring_their_labels() -> None:
    partners, labels = draw_partners(torch.eye(6))  # image i has label i
    assert sorted(partners.tolist()) == list(range(6))
    for i, partner in enumerate(partners.tolist()):
        assert labels[i].nonzero().flatten().tolist() == sorted({i, partner})


def test_a_scene_holds_both_maps() -> None:
    maps, partners = torch.randn(6, 4, 3, 2), torch.tensor([3, 0, 2, 5, 1, 4])
    scenes = join_pairs(maps, partners)
    assert torch.equal(scenes[:, :, :3], maps)
    assert torch.equal(scenes[:, :, 3:], maps[partners])


def test_a_model_joins_the_maps_of_its_images() -> None:
    model = lw.create_model("test_resnet", head="gap", labels=6, size=32, weights="none").eval()
    images, partners = torch.randn(4, 3, 32, 32), torch.tensor([1, 0, 3, 2])
    # Behind average pooling a scene is the mean of its images.
    single = model(images)
    torch.testing.assert_close(model(images, partners=partners), (single + single[partners]) / 2)


@pytest.mark.parametrize("head", ["gap", "csra", "ml-decoder", "hsq", "q2l"])
def test_every_head_takes_scenes(head: str) -> None:
    options = {} if head in ("gap", "csra") else {"dim": 16, "token_dropout": 0.5}
    model = heads.create(head, in_features=4, labels=6, **options)
    logits = model(join_pairs(torch.randn(6, 4, 3, 2), torch.arange(6).flip(0)))
    assert logits.shape == (6, 6)
    logits.sum().backward()


def test_scenes_need_independent_labels() -> None:
    changes = {"model.task": "single-label", "loss.name": "softmax-cross-entropy"}
    with pytest.raises(LabelwiseError, match="pair_mix"):
        check(load_recipe(None, {"pair_mix": 0.5, **changes}))
    recipe = load_recipe(None, changes)  # a default that does not fit is nobody's mistake
    assert recipe.pair_mix == 0
    check(recipe)
