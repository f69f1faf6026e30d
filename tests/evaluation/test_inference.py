"""Predictions against running the model by hand, picture by picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from labelwise.core.errors import LabelwiseError
from labelwise.data.table import LabelTable
from labelwise.evaluation import match_labels, predict_logits
from labelwise.evaluation.inference import input_sizes
from labelwise.features import FeatureCache
from labelwise.loading.augment import eval_transform
from labelwise.model.model import LabelModel, create_model

QUIET = {"workers": 0, "progress": False}


@torch.no_grad()
def by_hand(model: LabelModel, path: str, size: int, mirrored: bool) -> np.ndarray:
    transform = eval_transform(model.config.preprocessing.model_copy(update={"size": size}))
    with Image.open(path) as picture:
        image = transform(picture.convert("RGB"))
    return model((torch.flip(image, (2,)) if mirrored else image)[None])[0].numpy()


def test_logits_are_those_of_the_model_in_the_tables_order(hsq: LabelModel, sample: LabelTable) -> None:
    table = sample.select(np.arange(10))
    predictions = predict_logits(hsq, table, batch_size=4, workers=2, progress=False)
    assert predictions.logits.dtype == np.float32
    assert predictions.rows.tolist() == list(range(10))
    expected = np.stack([by_hand(hsq, path, 64, False) for path in table.images])
    np.testing.assert_allclose(predictions.logits, expected, atol=1e-5)


def test_flip_and_scales_are_the_mean_of_all_views(hsq: LabelModel, sample: LabelTable) -> None:
    table = sample.select(np.arange(4))
    predictions = predict_logits(hsq, table, flip=True, scales=(1.0, 1.4), **QUIET)  # 1.4 x 64 = 89.6, so 96
    for row, path in enumerate(table.images):
        views = [by_hand(hsq, path, size, mirrored) for size in (64, 96) for mirrored in (False, True)]
        np.testing.assert_allclose(predictions.logits[row], np.mean(views, axis=0), atol=1e-5)
    assert not np.allclose(predictions.logits, predict_logits(hsq, table, **QUIET).logits, atol=1e-5)


def test_a_bad_image_is_skipped_and_named_or_an_error(hsq: LabelModel, broken: LabelTable) -> None:
    predictions = predict_logits(hsq, broken, on_bad_image="skip", scales=(1.0, 1.5), **QUIET)
    assert predictions.rows.tolist() == [0, 1, 3, 4, 5]
    assert predictions.logits.shape == (5, 13)
    assert [Path(bad.path).name for bad in predictions.bad_images] == ["cut.jpg"]
    with pytest.raises(LabelwiseError, match=r"cut\.jpg.*on_bad_image='skip'"):
        predict_logits(hsq, broken, **QUIET)
    with pytest.raises(LabelwiseError, match="none of the 1 images"):
        predict_logits(hsq, broken.select([2]), on_bad_image="skip", **QUIET)


def test_cached_features_give_the_same_without_the_backbone(
    hsq: LabelModel, broken: LabelTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocessing = hsq.config.preprocessing
    options = {"folder": tmp_path / "cache", "workers": 0, "on_bad_image": "skip", "progress": False}
    cache = FeatureCache.build(broken, hsq.backbone, preprocessing, flips=True, **options)
    expected = predict_logits(hsq, broken, flip=True, on_bad_image="skip", **QUIET)
    monkeypatch.setattr(hsq.backbone, "forward", lambda images: pytest.fail("the backbone was run"))
    found = predict_logits(hsq, broken, flip=True, batch_size=2, features=cache, **QUIET)
    assert found.rows.tolist() == expected.rows.tolist()
    assert found.bad_images == expected.bad_images
    np.testing.assert_allclose(found.logits, expected.logits, atol=5e-3)  # maps are stored with half precision
    with pytest.raises(LabelwiseError, match="one input size"):
        predict_logits(hsq, broken, features=cache, scales=(1.0, 1.5), **QUIET)


def test_the_model_is_left_as_it_was(hsq: LabelModel, sample: LabelTable) -> None:
    table = sample.select([0])
    expected = predict_logits(hsq, table, **QUIET).logits
    hsq.head.train()  # a frozen backbone in evaluation mode, a head in training: its dropout must not show
    modes = [module.training for module in hsq.modules()]
    assert (predict_logits(hsq, table, **QUIET).logits == expected).all()
    assert [module.training for module in hsq.modules()] == modes
    assert torch.is_inference_mode_enabled() is False
    hsq.eval()


def test_sizes(hsq: LabelModel) -> None:
    assert input_sizes(hsq, [1]) == [64]
    assert input_sizes(hsq, (0.5, 1.0, 1.5, 2.1)) == [32, 64, 96, 128]
    with pytest.raises(LabelwiseError, match=r"scales 1.0 and 1.2 both give 64 pixels \(multiples of 32\)"):
        input_sizes(hsq, (1.0, 1.2))
    for wrong in ((), (0.0,), (float("inf"),)):
        with pytest.raises(LabelwiseError, match="give positive numbers"):
            input_sizes(hsq, wrong)


def test_a_backbone_of_fixed_size_says_so_and_odd_strides_are_found() -> None:
    fixed = create_model("mixer_s32_224", "gap", 2, weights="none")
    with pytest.raises(LabelwiseError, match="'mixer_s32_224' cannot take images of 288 pixels, only 224"):
        input_sizes(fixed, (1.0, 1.3))
    patches = create_model("vit_tiny_patch16_224", "gap", 2, weights="none", size=48)
    assert input_sizes(patches, (1.0, 1.4)) == [48, 64]


def test_labels_are_matched_by_name(sample: LabelTable) -> None:
    names = ["kite", *reversed(sample.labels)]
    matched = match_labels(sample, names)
    assert matched.labels == tuple(names)
    assert (matched.targets()[:, 0] == -1).all()
    assert (matched.targets()[:, 1:] == sample.targets()[:, ::-1]).all()
    with pytest.raises(LabelwiseError, match=r"1 label that the model does not know: 'bird'.*ignore_extra_labels=True"):
        match_labels(sample, sample.labels[1:])
    assert match_labels(sample, sample.labels[1:], ignore_extra=True).labels == sample.labels[1:]
    with pytest.raises(LabelwiseError, match="no label in common"):
        match_labels(sample, ["kite"], ignore_extra=True)


def test_an_image_with_exactly_one_label_has_no_other() -> None:
    table = LabelTable.from_lists(["a.jpg", "b.jpg"], [["cat"], ["dog"]], single_label=True)
    assert match_labels(table, ["fox", "dog", "cat"]).targets().tolist() == [[0, 0, 1], [0, 1, 0]]
