"""Two photos as one scene: the labels of both, and a head that cannot tell which photo came first."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelwise import LabelwiseError, heads
from labelwise.training import load_recipe
from labelwise.training.run import check
from labelwise.training.union import join_pairs, union_of_labels

TRUTH = st.lists(st.sampled_from([1, 0, -1]), min_size=3, max_size=3)


@given(TRUTH, TRUTH)
def test_the_labels_of_a_scene(a: list[int], b: list[int]) -> None:
    """What -1 stands for may be 1 or 0: the union is known where it is the same for all of these, and only there."""

    def possible(value: int) -> set[int]:
        return {0, 1} if value < 0 else {value}

    for one, other, union in zip(a, b, union_of_labels(torch.tensor(a), torch.tensor(b)).tolist(), strict=True):
        outcomes = {max(x, y) for x in possible(one) for y in possible(other)}
        assert outcomes == possible(union)


def test_a_scene_holds_both_maps() -> None:
    torch.manual_seed(0)
    maps, targets = torch.randn(6, 4, 3, 2), torch.eye(6)  # image i has label i
    scenes, labels = join_pairs(maps, targets)
    assert torch.equal(scenes[:, :, :3], maps)
    for i in range(6):
        (partner,) = [j for j in range(6) if torch.equal(scenes[i, :, 3:], maps[j])]
        assert labels[i].nonzero().flatten().tolist() == sorted({i, partner})


@pytest.mark.parametrize("head", ["gap", "csra", "ml-decoder", "hsq", "q2l"])
def test_every_head_takes_scenes(head: str) -> None:
    options = {} if head in ("gap", "csra") else {"dim": 16, "token_dropout": 0.5}
    model = heads.create(head, in_features=4, labels=6, **options)
    scenes, labels = join_pairs(torch.randn(6, 4, 3, 2), torch.eye(6))
    logits = model(scenes)
    assert logits.shape == labels.shape
    logits.sum().backward()


def test_scenes_need_cached_maps_and_independent_labels() -> None:
    for changes in ({"model.freeze": "none"}, {"model.task": "single-label", "loss.name": "softmax-cross-entropy"}):
        with pytest.raises(LabelwiseError, match="union=0"):
            check(load_recipe(None, {"union": 0.5, **changes}))
        recipe = load_recipe(None, changes)  # a default that does not fit is nobody's mistake
        assert recipe.union == 0
        check(recipe)
