"""A whole evaluation against scikit-learn on the same logits, and what must not change it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, top_k_accuracy_score

from labelwise.core.errors import LabelwiseError
from labelwise.data.table import LabelTable
from labelwise.evaluation import TableLogits, evaluate, expected_calibration_error, fit_config, predict_logits
from labelwise.metrics import multilabel_scores
from labelwise.model.model import LabelModel, create_model


@pytest.fixture(scope="module")
def predictions(hsq: LabelModel, sample: LabelTable) -> TableLogits:
    return predict_logits(hsq, sample, workers=0, progress=False)


def with_config(model: LabelModel, **changes: object) -> LabelModel:
    other = LabelModel(model.config.model_copy(update=changes), backbone=model.backbone)
    other.head = model.head
    return other.eval()


def test_numbers_are_scikit_learns(hsq: LabelModel, sample: LabelTable, predictions: TableLogits) -> None:
    thresholds = tuple(np.linspace(0.3, 0.6, 13).tolist())
    model = with_config(hsq, temperature=2.0, thresholds=thresholds)
    result = evaluate(model, sample, predictions=predictions, bootstrap=0).to_dict()
    truth = sample.targets()
    scores = torch.from_numpy(predictions.logits / 2).sigmoid().numpy()
    assert result["mAP"] == pytest.approx(100 * average_precision_score(truth, scores, average="macro"), abs=1e-9)
    precision, recall, _, _ = precision_recall_fscore_support(truth, scores >= thresholds, zero_division=0)
    assert (result["CP"], result["CR"]) == pytest.approx((100 * precision.mean(), 100 * recall.mean()))
    _, _, overall, _ = precision_recall_fscore_support(truth, scores >= thresholds, average="micro")
    assert result["OF1"] == pytest.approx(100 * overall)
    assert [row["recall"] for row in result["per_label"]] == pytest.approx((100 * recall).tolist())
    assert [row["threshold"] for row in result["per_label"]] == list(thresholds)
    plain = torch.from_numpy(predictions.logits).sigmoid().numpy()
    assert result["ece"]["before"] == pytest.approx(100 * expected_calibration_error(plain, truth), abs=1e-4)
    assert result["ece"]["after"] == pytest.approx(100 * expected_calibration_error(scores, truth), abs=1e-4)
    assert result["images"] == 50
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_the_order_of_labels_and_images_changes_nothing(hsq: LabelModel, sample: LabelTable) -> None:
    options = {"workers": 0, "progress": False, "bootstrap": 0}
    expected = evaluate(hsq, sample, **options).to_dict()
    shuffled = sample.with_labels(sorted(sample.labels, key=lambda name: name[::-1])).select(np.arange(50)[::-1])
    assert shuffled.labels != sample.labels
    found = evaluate(hsq, shuffled, **options).to_dict()
    assert [row["label"] for row in found["per_label"]] == list(hsq.labels)
    assert found["mAP"] == pytest.approx(expected["mAP"], abs=1e-9)
    assert found["OF1"] == expected["OF1"]


def test_labels_that_one_side_lacks(hsq: LabelModel, sample: LabelTable, predictions: TableLogits) -> None:
    fewer = sample.with_labels([*sample.labels[3:], "kite"], missing="absent")
    other_case = [name.upper() for name in sample.labels[3:]]  # the same labels all the same
    fewer = replace(fewer, labels=(*other_case, "kite"))
    with pytest.raises(LabelwiseError, match="'kite'"):
        evaluate(hsq, fewer, predictions=predictions)
    result = evaluate(hsq, fewer, predictions=predictions, bootstrap=0, ignore_extra_labels=True).to_dict()
    assert result["labels_not_in_data"] == list(sample.labels[:3])
    assert result["labels_ignored"] == ["kite"]
    assert result["unknown_entries"] == 150
    respelt = replace(sample, labels=tuple(name.upper() for name in sample.labels))
    whole = evaluate(hsq, respelt, predictions=predictions, bootstrap=0).to_dict()
    assert whole["labels_not_in_data"] == whole["labels_ignored"] == []
    assert result["mAP"] == pytest.approx(np.mean([row["AP"] for row in whole["per_label"][3:]]))


def test_a_skipped_image_is_counted_and_named(hsq: LabelModel, broken: LabelTable) -> None:
    evaluation = evaluate(hsq, broken, on_bad_image="skip", workers=0, progress=False, bootstrap=20)
    result = evaluation.to_dict()
    assert result["images"] == 5
    assert [bad["path"] for bad in result["bad_images"]] == [broken.images[2]]
    good = broken.select([0, 1, 3, 4, 5])
    assert result["mAP"] == pytest.approx(evaluate(hsq, good, workers=0, progress=False).to_dict()["mAP"], abs=1e-9)


def test_intervals_are_percentages_around_the_numbers(
    hsq: LabelModel, sample: LabelTable, predictions: TableLogits
) -> None:
    result = evaluate(hsq, sample, predictions=predictions, bootstrap=200).to_dict()
    confidence = result["confidence"]
    assert (confidence["level"], confidence["samples"]) == (95, 200)
    for name in ("OR", "OF1", "CF1_top3", "accuracy_top3"):
        low, high = confidence[name]
        assert low <= result[name] <= high
    assert confidence["mAP"][0] < confidence["mAP"][1] < 100


def test_twice_as_many_labels_as_there_are_is_told(hsq: LabelModel, sample: LabelTable) -> None:
    present = sample.targets()[:, :6]
    logits = np.full((50, 13), -5, np.float32)
    logits[:, :6] = np.where(present == 1, 5, -5)
    logits[:, 6:] = 5  # seven labels too many
    said = evaluate(hsq, sample, predictions=TableLogits(logits, np.arange(50), ()), bootstrap=0).too_many_labels
    truth = sample.targets().sum() / 50
    assert (
        f"{7 + present.sum() / 50:.1f} labels are predicted per image, but images have {truth:.1f} on average" in said
    )
    assert "more epochs" in said
    right = TableLogits(np.where(sample.targets() == 1, 5, -5).astype(np.float32), np.arange(50), ())
    assert evaluate(hsq, sample, predictions=right, bootstrap=0).too_many_labels == ""


def test_a_temperature_moves_ece_but_no_ranking_and_no_decision(
    hsq: LabelModel, sample: LabelTable, predictions: TableLogits
) -> None:
    """Logits beyond 17 are all 1 as single-precision sigmoids; their order must survive."""
    sure = TableLogits(40 + 10 * predictions.logits, predictions.rows, ())
    thresholds = tuple(np.linspace(0.2, 0.9, 13).tolist())
    before = with_config(hsq, thresholds=thresholds)
    after = with_config(hsq)
    targets = sample.targets()
    after.config = fit_config(before.config, sure.logits, targets, temperature=True).config
    assert after.config.temperature != 1
    one, other = (evaluate(model, sample, predictions=sure, bootstrap=0).to_dict() for model in (before, after))
    assert one["mAP"] == other["mAP"] == 100 * multilabel_scores(predictions.logits, targets).mAP
    assert [row["predicted"] for row in one["per_label"]] == [row["predicted"] for row in other["per_label"]]
    assert other["ece"]["after"] < other["ece"]["before"] == one["ece"]["after"]


def test_fitting_both_gives_the_best_f1_of_each_label(
    hsq: LabelModel, sample: LabelTable, predictions: TableLogits
) -> None:
    targets = sample.targets()
    targets[:, 4] = -1
    fit = fit_config(hsq.config, predictions.logits, targets, thresholds="f1", temperature=True)
    assert fit.fallback_labels == (hsq.labels[4],)
    model = with_config(hsq, **{key: getattr(fit.config, key) for key in ("temperature", "offset", "thresholds")})
    known = LabelTable.from_dense(list(sample.images), targets, sample.labels)
    result = evaluate(model, known, predictions=predictions, bootstrap=0).to_dict()
    for n, row in enumerate(result["per_label"]):
        if n == 4:
            assert row["F1"] is None
            continue
        logits = predictions.logits[:, n]
        best = max(
            2 * (passes & (targets[:, n] == 1)).sum() / (passes.sum() + (targets[:, n] == 1).sum())
            for passes in (logits >= cut for cut in logits)
        )
        assert row["F1"] == pytest.approx(100 * best)


def test_single_label_models_report_accuracy_and_the_usual_ece(sample: LabelTable) -> None:
    generator = np.random.default_rng(0)
    numbers = generator.integers(0, 13, 50)
    targets = np.eye(13, dtype=np.int8)[numbers]
    table = LabelTable.from_dense(list(sample.images), targets, sample.labels, source="classes")
    model = create_model("test_resnet", "gap", sample.labels, weights="none", size=64, task="single-label").eval()
    logits = (2 * targets + generator.normal(0, 1, targets.shape)).astype(np.float32)
    result = evaluate(model, table, predictions=TableLogits(logits, np.arange(50), ()), bootstrap=50).to_dict()
    for k in (1, 5):
        expected = 100 * top_k_accuracy_score(numbers, logits, k=k, labels=np.arange(13))
        assert result[f"accuracy_top{k}"] == pytest.approx(expected)
    low, high = result["confidence"]["accuracy_top1"]
    assert low <= result["accuracy_top1"] <= high
    best = torch.from_numpy(logits).double().softmax(1).max(dim=1)
    right = (best.indices.numpy() == numbers).astype(int)
    assert result["ece"]["before"] == pytest.approx(
        100 * expected_calibration_error(best.values[:, None], right[:, None]), abs=1e-9
    )
    # Its decision is its best label, as in a prediction.
    assert result["OP"] == result["OR"] == pytest.approx(result["accuracy_top1"])
    with pytest.raises(LabelwiseError, match="always gives its best label"):
        fit_config(model.config, logits, targets, thresholds="f1")


def test_an_evaluation_prints_its_headline_metrics_and_becomes_a_frame(
    hsq: LabelModel, sample: LabelTable, predictions: TableLogits
) -> None:
    evaluation = evaluate(hsq, sample, predictions=predictions, bootstrap=20)
    text, result = repr(evaluation), evaluation.to_dict()
    assert text.splitlines()[0].endswith("50 images, 13 labels")
    assert f"{result['mAP']:.2f}" in text
    assert "95 % intervals of 20 samples" in text
    assert max(map(len, text.splitlines())) <= 120
    html = evaluation._repr_html_()
    assert f"{result['OF1']:.2f}" in html
    assert html.count("<tr>") == 8
    frame = evaluation.to_pandas()
    assert list(frame.index) == list(hsq.labels)
    assert frame["AP"].mean() == pytest.approx(result["mAP"])
    assert {"precision", "recall", "F1", "threshold", "positives"} <= set(frame.columns)
