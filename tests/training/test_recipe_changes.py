"""Changing one thing of a recipe: what belongs to the thing that was replaced does not get in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from labelwise import losses
from labelwise.core.errors import LabelwiseError
from labelwise.training.recipe import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("loss", losses.list_losses())
def test_any_loss_on_a_papers_recipe(loss: str) -> None:
    """ML-Decoder's table 12 is one flag: cross-entropy, focal or asymmetric loss on the same recipe."""
    recipe = load_recipe(RECIPES / "ml-decoder/coco-tresnet-l-448.yaml", {"loss.name": loss})
    built = losses.create(recipe.loss.name, **recipe.loss.options)
    assert built.options["reduction"] == "sum"  # what both losses know is kept


def test_an_option_that_was_asked_for_is_still_checked() -> None:
    recipe = load_recipe(
        RECIPES / "ml-decoder/coco-tresnet-l-448.yaml", {"loss.name": "bce", "loss.options.gamma_neg": 4}
    )
    with pytest.raises(LabelwiseError, match="loss 'bce': unknown option"):
        losses.create(recipe.loss.name, **recipe.loss.options)


def test_another_head_on_a_papers_recipe() -> None:
    recipe = load_recipe(RECIPES / "hsq/voc.yaml", {"model.head": "gap"})
    assert recipe.model.options == {}


def test_splits_have_one_name() -> None:
    data = load_recipe(None, {"data.train": "Training+dev", "data.validation": "validation"}).data
    assert (data.train, data.validation) == ("train+val", "val")
