from typing import ClassVar

import pytest

from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError
from labelwise.training.recipe import load_recipe


class Mixing(Config):
    renamed: ClassVar = {"union": "pair_mix"}
    pair_mix: float = 0.0


def test_an_old_name_is_read_and_today_s_is_written() -> None:
    assert Mixing.parse({"union": 0.5}, "recipe").model_dump() == {"pair_mix": 0.5}
    with pytest.raises(LabelwiseError, match="recipe: union is the old name of pair_mix; give only one of them"):
        Mixing.parse({"union": 0.5, "pair_mix": 0.5}, "recipe")


def test_recipes_and_settings_with_the_old_name_still_work(tmp_path) -> None:
    (tmp_path / "recipe.yaml").write_text("union: 0.25\n")
    assert load_recipe(tmp_path / "recipe.yaml", {}).pair_mix == 0.25
    assert load_recipe(None, {"union": 0.75}).pair_mix == 0.75
