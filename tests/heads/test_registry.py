from __future__ import annotations

import pytest
import torch

from labelwise import heads
from labelwise.core.errors import LabelwiseError
from labelwise.heads.config import QueryHeadConfig
from labelwise.heads.registry import parse_config


def test_option_names_are_unique_across_parts() -> None:
    """Users write `shared_experts=4`, not `experts.shared_experts=4`: that only works while no name occurs twice."""
    parts = [f for f in QueryHeadConfig.model_fields if f != "kind"]
    names = [name for part in parts for name in type(getattr(QueryHeadConfig(), part)).model_fields]
    assert len(names) == len(set(names)) == len(QueryHeadConfig.option_parts())


@pytest.mark.parametrize("name", heads.list_heads())
def test_every_option_is_documented_in_its_class(name: str) -> None:
    """`help()`, the reference and `labelwise heads NAME` print the same text: the `Args:` of the config."""
    config = heads.preset(name)
    for option, part in config.option_parts().items():
        owner = config if part is None else getattr(config, part)
        assert owner.field_docs().get(option, "").endswith("."), option
        assert set(owner.field_docs()) <= set(type(owner).model_fields)


@pytest.mark.parametrize("name", heads.list_heads())
def test_configs_survive_json(name: str) -> None:
    config = heads.preset(name)
    assert parse_config(config.model_dump(mode="json"), name) == config


def test_listing_takes_wildcards() -> None:
    assert heads.list_heads("*decoder*") == ["transformer-decoder", "ml-decoder"]
    assert heads.list_heads("hsq*") == ["hsq", "hsq-linear", "hsq-baseline"]
    baselines = ["gap", "csra", "transformer-decoder", "q2l", "ml-decoder"]
    assert heads.list_heads() == [
        *baselines,
        *heads.list_heads("hsq*"),
        "conse",
        "fast0tag",
        "text-aligned",
        "ram-plus",
    ]


def test_labels_may_be_names() -> None:
    assert heads.create("gap", in_features=4, labels=["cat", "dog"])(torch.ones(1, 4, 2, 2)).shape == (1, 2)


def test_default_number_of_groups_is_at_most_100_and_the_labels() -> None:
    small = heads.create("ml-decoder", in_features=8, labels=30, dim=8)
    large = heads.create("ml-decoder", in_features=8, labels=1234, dim=8)
    assert (small.groups, small.group_size) == (30, 1)
    assert (large.groups, large.group_size) == (100, 13)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hsqq", {}, r"unknown head 'hsqq'; did you mean 'hsq'\? \(gap, csra, .*hsq-linear.*\)"),
        ("hsq", {"shared_expert": 3}, r"head 'hsq': unknown option 'shared_expert'; did you mean 'shared_experts'\?"),
        ("gap", {"groups": 3}, r"unknown option 'groups'; choose one of dropout"),
        ("hsq", {"shared_experts": 0, "task_experts": 0}, "cannot both be 0"),
        ("hsq", {"shared_experts": -1}, "greater than or equal to 0"),
        ("hsq", {"widths": ()}, "at least 1 item"),
        ("hsq", {"wiring": "loops"}, "'paper' or 'progressive'"),
        ("hsq", {"expert": "conv"}, r"unknown expert 'conv'; choose one of linear, mlp"),
        ("ml-decoder", {"dim": 30}, "dim=30 is not divisible by attention_heads=8"),
        ("q2l", {"dim": 18, "attention_heads": 2}, "divisible by 4"),
        ("csra", {"residual_heads": 3}, "1, 2, 4, 6 or 8"),
        ("ml-decoder", {"queries": "words"}, "need word_vectors"),
        ("ml-decoder", {"queries": "words", "word_vectors": torch.zeros(3, 5)}, r"must be \[9, 5\], not \[3, 5\]"),
        ("ml-decoder", {"dropout": 1.0}, "less than 1"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(LabelwiseError, match=message):
        heads.create(name, in_features=8, labels=9, **options)


def test_no_labels_is_a_mistake() -> None:
    with pytest.raises(LabelwiseError, match="at least one label"):
        heads.create("gap", in_features=8, labels=0)
