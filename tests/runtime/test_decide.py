"""Predicting and evaluating decide alike, for any logits, calibration and thresholds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from labelwise.backbones import BackboneConfig
from labelwise.core.errors import LabelwiseError
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.table import LabelTable
from labelwise.evaluation.evaluate import measure
from labelwise.evaluation.inference import TableLogits
from labelwise.evaluation.thresholds import fit_config
from labelwise.heads.gap import GapConfig
from labelwise.model.config import ModelConfig
from labelwise.runtime.prediction import Prediction, decide, probabilities

LABELS = ("cat", "dog", "sofa")


def config_of(**changes: Any) -> ModelConfig:
    parts = {"backbone": BackboneConfig(name="test_resnet"), "head": GapConfig(), "preprocessing": Preprocessing()}
    return ModelConfig(**parts, labels=LABELS, **changes)


@st.composite
def cases(draw: st.DrawFn) -> tuple[ModelConfig, NDArray[np.float32]]:
    """Logits [M, 3] and a config whose thresholds are anything, a score of an image, or a double next to one."""
    logit = st.floats(-60, 60, width=32)
    logits = np.array(draw(st.lists(st.lists(logit, min_size=3, max_size=3), min_size=1, max_size=4)), np.float32)
    task = draw(st.sampled_from(["multi-label", "multi-label", "single-label"]))
    fitted = {"temperature": draw(st.floats(0.05, 20)), "offset": draw(st.floats(-8, 8))}
    config = config_of(task=task, **fitted)
    scores = probabilities(logits, config)
    thresholds = []
    for label in range(3):
        score = float(scores[draw(st.integers(0, len(scores) - 1)), label])
        near = [score, np.nextafter(score, 0), min(1.0, np.nextafter(score, 2)), float(np.float32(score))]
        thresholds.append(float(draw(st.one_of(st.sampled_from(near), st.floats(0, 1)))))
    return config_of(task=task, thresholds=tuple(thresholds), **fitted), logits


@settings(deadline=None, max_examples=150)
@given(cases())
# A double between a score and its nearest float: comparing floats and comparing doubles once differed here.
@example((config_of(thresholds=(0.8807970779778824, 0.5, 0.5), temperature=1.0), np.float32([[2.0, 0.0, 0.0]])))
@example((config_of(thresholds=(0.6, 0.6, 0.6), task="single-label"), np.float32([[1.0, 0.9, 0.8]])))
def test_predict_and_evaluate_decide_alike(case: tuple[ModelConfig, NDArray[np.float32]]) -> None:
    config, logits = case
    table = LabelTable.from_lists([f"{i}.jpg" for i in range(len(logits))], [list(LABELS)] * len(logits), labels=LABELS)
    scores = probabilities(logits, config)
    for row in range(len(logits)):
        prediction = Prediction(config, table.images[row], scores[row])
        alone = TableLogits(logits[row : row + 1], np.array([0]), ())
        measured = measure(config, table.select([row]), alone, bootstrap=2)
        predicted = measured.scores.tally.by_threshold.predicted
        assert sorted(prediction.labels) == [label for label, count in zip(LABELS, predicted, strict=True) if count]
        applies = [label for label, yes in zip(LABELS, decide(scores, config)[row], strict=True) if yes]
        assert sorted(prediction.labels) == applies
        # The intervals come from the same decisions.
        assert measured.draws is not None
        assert measured.draws.metrics["OR"] == pytest.approx(len(applies) / 3)


def test_a_score_equal_to_its_threshold_passes() -> None:
    logits = np.float32([[0.3, -0.7, 5.0]])
    scores = probabilities(logits, config_of(temperature=0.7, offset=0.2))[0]
    config = config_of(temperature=0.7, offset=0.2, thresholds=tuple(scores.tolist()))
    assert decide(scores, config).all()
    above = config.model_copy(update={"thresholds": tuple(np.nextafter(scores, 2).tolist())})
    assert not decide(scores, above).any()


def test_a_single_label_model_has_no_thresholds_to_fit() -> None:
    logits, targets = np.float32([[2, 0, 0], [0, 2, 0]]), np.array([[1, 0, 0], [0, 1, 0]], np.int8)
    with pytest.raises(LabelwiseError, match="always gives its best label"):
        fit_config(config_of(task="single-label"), logits, targets, thresholds="f1")
    old = config_of(task="single-label", thresholds=(0.2, 0.3, 0.4))  # of a model that was saved with some
    assert fit_config(old, logits, targets, temperature=True).config.thresholds == old.thresholds


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
def test_probabilities_agree_with_torch(task: str) -> None:
    logits = np.random.default_rng(0).normal(0, 20, (50, 3)).astype(np.float32)
    z = (torch.from_numpy(logits).double() - 0.4) / 1.7
    expected = z.sigmoid() if task == "multi-label" else z.softmax(dim=1)
    found = probabilities(logits, config_of(task=task, temperature=1.7, offset=0.4))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12, atol=1e-300)
