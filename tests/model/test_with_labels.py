"""A model takes other labels after training: same weights, words from its own source, and it saves like any model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.words import WordsConfig

NAMES = ["cat", "dog", "sofa", "téléphone", "sea gull", "harbour", "boat"]
KNOWN = NAMES[:4]
SMALL: dict[str, Any] = {"dim": 16, "attention_heads": 2, "queries": "words", "classifier": "shared"}
IN_GROUPS: dict[str, Any] = {**SMALL, "classifier": "words", "groups": 2}
IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    np.save(tmp_path / "words.npy", np.random.default_rng(0).normal(size=(len(NAMES), 6)).astype(np.float32))
    (tmp_path / "words.labels.txt").write_text("\n".join(NAMES))
    return tmp_path / "words.npy"


def word_model(table: Path, options: dict[str, Any] = SMALL, head: str = "ml-decoder", **more: Any) -> lw.LabelModel:
    torch.manual_seed(0)
    words = WordsConfig(source=str(table), phrases={"seabird": ("sea gull",)})
    return lw.create_model(
        "test_resnet", head, KNOWN, weights="none", size=64, words=words, **options, **more
    ).eval()  # fmt: skip


@pytest.mark.parametrize("options", [SMALL, IN_GROUPS], ids=["full", "groups"])
def test_other_labels_any_number_and_order_and_back_from_disk(
    options: dict[str, Any], table: Path, tmp_path: Path
) -> None:
    model = word_model(table, options)
    for labels in (["boat"], ["dog", "harbour", "seabird", "cat", "boat", "sofa"], KNOWN[::-1]):
        other = model.with_labels(labels)
        assert other.labels == tuple(labels)
        assert other.backbone is model.backbone
        scores = other(IMAGES)
        assert scores.shape == (2, len(labels))
        other.save(tmp_path / "m")
        again = lw.load_model(tmp_path / "m")
        assert again.config == other.config
        assert torch.equal(again(IMAGES), scores)
        back = again.with_labels(KNOWN)  # and on from there: the saved model still knows its source of words
        assert torch.equal(back.head.state_dict()["word_vectors"], model.head.state_dict()["word_vectors"])
    assert torch.equal(model.with_labels(KNOWN)(IMAGES), model(IMAGES))
    torch.testing.assert_close(model.with_labels(KNOWN[::-1])(IMAGES), model(IMAGES).flip(1))


def test_known_labels_need_no_source_and_new_ones_name_what_is_missing(table: Path) -> None:
    model = word_model(table)
    table.unlink()
    subset = model.with_labels(["sofa", "cat"])
    torch.testing.assert_close(subset(IMAGES), model(IMAGES)[:, [2, 0]], atol=1e-5, rtol=1e-4)
    with pytest.raises(LabelwiseError, match="no word vectors"):
        model.with_labels(["boat"])
    unsaid = lw.create_model(
        "test_resnet", "ml-decoder", KNOWN, weights="none", size=64, word_vectors=torch.randn(4, 6), **SMALL
    )
    with pytest.raises(LabelwiseError, match="has no word source: give the vectors of 'boat'"):
        unsaid.with_labels(["dog", "boat"])
    given = torch.randn(2, 6)
    assert torch.equal(unsaid.with_labels(["dog", "boat"], given).head.state_dict()["word_vectors"], given)
    with pytest.raises(LabelwiseError, match=r"word_vectors must be \[2, 6\], not \[3, 6\]"):
        unsaid.with_labels(["dog", "boat"], torch.randn(3, 6))


def test_thresholds_of_known_labels_stay_and_new_ones_get_the_median(table: Path) -> None:
    model = word_model(table)
    assert model.with_labels(["boat", "dog"]).config.thresholds is None  # nothing was fitted: 0.5 for all
    fitted = {"thresholds": (0.2, 0.3, 0.7, 0.9), "temperature": 1.7, "results": {"mAP": 88.1}}
    model.config = model.config.model_copy(update=fitted)
    other = model.with_labels(["boat", "sofa", "harbour"])
    assert other.thresholds == (0.5, 0.7, 0.5)  # between 0.3 and 0.7
    assert other.config.temperature == 1.7
    assert other.config.results == {}  # they speak of other labels
    assert model.with_labels(KNOWN[::-1]).config.results == {"mAP": 88.1}


def test_weights_are_shared_not_copied(table: Path) -> None:
    model = word_model(table)
    other = model.with_labels(["boat", "harbour"])
    before = other(IMAGES)
    assert not other.training
    model.train()
    model.backbone.eval()  # frozen
    trained = model.with_labels(["boat"])
    assert trained.training
    assert trained.head.training
    assert not model.backbone.training
    with torch.no_grad():
        model.head.get_parameter("classifier.weights.weight").mul_(-1)
    torch.testing.assert_close(other(IMAGES), -before)  # its bias is still zero


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("gap", "(--head ml-decoder --set head.queries=words --set head.classifier=shared --set model.words="),
        ("ml-decoder", "(--set head.queries=words --set head.classifier=shared --set model.words="),
        (
            "hsq",
            "(--set head.queries=words --set head.task_weights=query --set head.gate_weights=query "
            "--set head.classifier=shared --set model.words=",
        ),
    ],
)
def test_models_that_are_tied_to_their_labels_say_so(head: str, message: str) -> None:
    model = lw.create_model("test_resnet", head, KNOWN, weights="none", size=64)
    with pytest.raises(LabelwiseError, match="takes new labels") as caught:
        model.with_labels(["boat"])
    assert message in caught.value.for_command_line()


def test_mistakes_are_named(table: Path) -> None:
    model = word_model(table)
    with pytest.raises(LabelwiseError, match="occur more than once: boat"):
        model.with_labels(["boat", "boat"])
    with pytest.raises(LabelwiseError, match="labels"):
        model.with_labels([])
    with pytest.raises(LabelwiseError, match="no 'xylophone' for 'xylophone'"):
        model.with_labels(["xylophone"])
    model.head = lw.heads.optimize(model.head)
    with pytest.raises(LabelwiseError, match="change them first, then optimize"):
        model.with_labels(["boat"])


def test_an_optimized_model_for_other_labels_gives_their_scores(table: Path) -> None:
    options = {**IN_GROUPS, "task_weights": "query", "gate_weights": "query", "widths": (8, 6)}
    other = word_model(table, options, "hsq").with_labels(["boat", "dog", "harbour"])
    features = torch.randn(2, 96, 3, 3)
    torch.testing.assert_close(lw.heads.optimize(other.head)(features), other.head(features), atol=1e-4, rtol=1e-4)
