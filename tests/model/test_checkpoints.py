"""Released checkpoints become models: every layout at its real size, and the logits of an independent forward."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.models import resnet18, resnet101

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.data.readers.voc import VOC_LABELS
from tests.oracles import released
from tests.oracles import released_forward as literal
from tests.oracles.released import Shapes

M, L, XL = (3, 4, 11, 3), (3, 4, 23, 3), (3, 8, 34, 5)
SWIN_L = released.swin(192, (2, 2, 18, 2), (6, 12, 24, 48), window=12, size=384)
IMAGENET = (0.485, 0.456, 0.406)
# One description of each tag, and a decoder that writes captions beside the tagging head.
RAM = {key: shape for key, shape in released.ram_plus(1536, 4585).items() if key != "reweight_scale"}
RAM |= {"label_embed": (4585, 512), "text_decoder.cls.predictions.bias": (30524,)}
RAM |= {"tag_encoder.encoder.layer.0.attention.self.query.weight": (768, 768)}
WIDER = [f"attribute {i}" for i in range(14)]


def below(prefix: str, shapes: Shapes) -> Shapes:
    return {f"{prefix}{key}": shape for key, shape in shapes.items()}


def resnet_101() -> Shapes:
    with torch.device("meta"):
        state = resnet101().state_dict()
    return {key: tuple(value.shape) for key, value in state.items() if not key.startswith("fc.")}


def without_counters(shapes: Shapes) -> Shapes:
    """Query2Label's frozen batch norms do not count batches."""
    return {key: shape for key, shape in shapes.items() if not key.endswith("num_batches_tracked")}


# name: tensors, what else is given, backbone, size, mean of the input, labels
RELEASED: dict[str, tuple[Shapes, dict[str, Any], str, int, float, int]] = {
    "ML-Decoder, TResNet-M, COCO": (
        released.tresnet(M) | released.ml_decoder(2048, 80, 80), {}, "tresnet_m", 224, 0, 80,
    ),
    "ML-Decoder, TResNet-L, COCO": (
        released.tresnet(L, bottleneck=True) | released.ml_decoder(2048, 80, 80), {}, "tresnet_v2_l", 448, 0, 80,
    ),
    "ML-Decoder, TResNet-XL, COCO": (
        released.tresnet(XL, bottleneck=True) | released.ml_decoder(2048, 80, 80), {}, "tresnet_v2_xl", 640, 0, 80,
    ),
    "ML-Decoder, TResNet-M, Open Images": (
        released.tresnet(M) | released.ml_decoder(2048, 9605, 200),
        {"labels": [f"/m/{i}" for i in range(9605)]}, "tresnet_m", 224, 0, 9605,
    ),
    "ML-Decoder, TResNet-L, Stanford Cars": (
        released.tresnet(L, bottleneck=True) | released.ml_decoder(2048, 196, 100),
        {"labels": [f"car {i}" for i in range(196)], "task": "single-label"}, "tresnet_v2_l", 384, 0, 196,
    ),
    "ML-Decoder, zero-shot": (
        released.tresnet(M) | released.ml_decoder(2048, 925, None),
        {"labels": [f"tag {i}" for i in range(925)], "word_vectors": torch.empty(925, 300, device="meta"), "size": 224},
        "tresnet_m", 224, 0, 925,
    ),
    "Query2Label, ResNet-101, 448": (
        below("backbone.0.body.", without_counters(resnet_101())) | released.query2label(2048, 80, 14, 2048, 8192),
        {}, "resnet101", 448, IMAGENET[0], 80,
    ),
    "Query2Label, ResNet-101, 576": (
        below("backbone.0.body.", without_counters(resnet_101())) | released.query2label(2048, 80, 18, 2048, 8192),
        {}, "resnet101", 576, IMAGENET[0], 80,
    ),
    "Query2Label, TResNet-L, 448": (
        below("backbone.0.body.", released.tresnet((4, 5, 18, 3), 76)) | released.query2label(2432, 80, 14, 2432, 8192),
        {}, "tresnet_l", 448, 0, 80,
    ),
    "Query2Label, TResNet-L from ImageNet-21k, 448": (
        below("backbone.0.body.", released.tresnet(L, bottleneck=True))
        | released.query2label(2048, 80, 14, 2048, 8192),
        {}, "tresnet_v2_l", 448, 0, 80,
    ),
    "Query2Label, Swin-L, 384": (
        below("backbone.0.", SWIN_L) | released.query2label(1536, 80, 12, 2048, 8192, projected=True),
        {}, "swin_large_patch4_window12_384", 384, IMAGENET[0], 80,
    ),
    "CSRA, ResNet-101, VOC": (resnet_101() | released.csra(2048, 20, 1), {}, "resnet101", 448, 0, 20),
    "CSRA, ResNet-101, COCO": (resnet_101() | released.csra(2048, 80, 4), {}, "resnet101", 448, 0, 80),
    "CSRA, ResNet-101 from CutMix, COCO": (resnet_101() | released.csra(2048, 80, 6), {}, "resnet101", 448, 0, 80),
    "CSRA, ViT-L, COCO": (
        released.vit(1024, 24, 448) | released.csra(1024, 80, 8),
        {"residual_weight": 0.3}, "vit_large_patch16_224", 448, 0, 80,
    ),
    "CSRA, ViT-B, WIDER": (
        released.vit(768, 12, 224) | released.csra(768, 14, 1),
        {"labels": WIDER}, "vit_base_patch16_224", 224, 0.5, 14,
    ),
    "CSRA, ViT-L, WIDER": (
        released.vit(1024, 24, 224) | released.csra(1024, 14, 1),
        {"labels": WIDER}, "vit_large_patch16_224", 224, 0.5, 14,
    ),
    "RAM++, Swin-L": (
        below("visual_encoder.", SWIN_L) | released.ram_plus(1536, 4585),
        {"labels": [f"tag {i}" for i in range(4585)]}, "swin_large_patch4_window12_384", 384, IMAGENET[0], 4585,
    ),
    "RAM, Swin-L": (
        below("visual_encoder.", SWIN_L) | RAM, {"labels": [f"tag {i}" for i in range(4585)]},
        "swin_large_patch4_window12_384", 384, IMAGENET[0], 4585,
    ),
    "ASL, TResNet-L, COCO": (
        released.tresnet((4, 5, 18, 3), 76) | {"head.fc.weight": (80, 2432), "head.fc.bias": (80,)},
        {}, "tresnet_l", 448, 0, 80,
    ),
    "ASL, TResNet-XL, COCO": (
        released.tresnet((4, 5, 24, 3), 83) | {"head.fc.weight": (80, 2656), "head.fc.bias": (80,)},
        {}, "tresnet_xl", 640, 0, 80,
    ),
    "CSL, TResNet-M, Open Images": (
        released.tresnet(M) | {"head.fc.weight": (9605, 2048), "head.fc.bias": (9605,)},
        {"labels": [f"/m/{i}" for i in range(9605)]}, "tresnet_m", 224, 0, 9605,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_every_released_layout_at_its_real_size(name: str, tmp_path: Path) -> None:
    """On the meta device, without numbers: every tensor finds its place, and a batch of images gets through."""
    shapes, given, backbone, size, mean, labels = RELEASED[name]
    file = tmp_path / "released.pth"
    torch.save({key: torch.empty(shape, device="meta") for key, shape in shapes.items()}, file)
    with torch.device("meta"):
        model = lw.load_checkpoint(file, **given)
        logits = model(torch.empty(2, 3, size, size))
    assert model.config.backbone.name == backbone
    assert logits.shape == (2, labels)
    preprocessing = model.config.preprocessing
    assert (preprocessing.size, preprocessing.mean[0], preprocessing.interpolation) == (size, mean, "bilinear")
    assert preprocessing.resize == "squash"
    assert set(model.thresholds) == {0.68 if "RAM" in name else 0.5}
    if "labels" not in given:
        assert model.labels[:2] == (("person", "bicycle") if labels == 80 else ("aeroplane", "bicycle"))


def test_the_lists_of_names() -> None:
    from labelwise.data.readers.coco import COCO_LABELS

    assert (len(set(COCO_LABELS)), len(set(VOC_LABELS))) == (80, 20)
    assert COCO_LABELS[-1] == "toothbrush"


def saved(tmp_path: Path, content: Any) -> Path:
    torch.save(content, tmp_path / "checkpoint.pth")
    return tmp_path / "checkpoint.pth"


TINY = released.tresnet((3, 4, 6, 3))  # TResNet-S, the smallest one
NAMES = [f"label {i}" for i in range(23)]
TOLERANCE = {"atol": 2e-5, "rtol": 1e-4}


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("wrapper", [None, "model", "state_dict"])
@torch.no_grad()
def test_ml_decoder_computes_what_its_authors_code_does(wrapper: str | None, prefix: str, tmp_path: Path) -> None:
    state = released.random_tensors(TINY | released.ml_decoder(2048, 23, 5, dim=32))
    content = {f"{prefix}{key}": value for key, value in state.items()}
    file = saved(tmp_path, content if wrapper is None else {wrapper: content, "idx_to_class": dict(enumerate(NAMES))})
    model = lw.load_checkpoint(file, labels=NAMES if wrapper is None else None, size=64)
    assert model.labels == tuple(NAMES)
    images = torch.rand(2, 3, 64, 64)
    maps = literal.tresnet_map(state, images)
    torch.testing.assert_close(model.backbone(images), maps, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model(images), literal.ml_decoder_logits(state, maps, 23), **TOLERANCE)


@torch.no_grad()
def test_a_zero_shot_ml_decoder_with_the_authors_word_array(tmp_path: Path) -> None:
    state = released.random_tensors(TINY | released.ml_decoder(2048, 23, None, dim=32, words=10))
    words = torch.randn(23, 10).half()
    torch.save(words.T.contiguous(), tmp_path / "wordvec_array.pth")
    file = saved(tmp_path, {"model": state})
    with pytest.raises(LabelwiseError, match=r"zero-shot head.*\(word_vectors=…\)"):
        lw.load_checkpoint(file, labels=NAMES, size=64)
    model = lw.load_checkpoint(file, labels=NAMES, size=64, word_vectors=tmp_path / "wordvec_array.pth")
    images = torch.rand(2, 3, 64, 64)
    maps = literal.tresnet_map(state, images)
    expected = literal.ml_decoder_logits(state, maps, 23, words.float())
    torch.testing.assert_close(model(images), expected, **TOLERANCE)
    unseen = torch.randn(2, 10)
    other = model.with_labels(["new", "newer"], unseen)
    torch.testing.assert_close(other(images), literal.ml_decoder_logits(state, maps, 2, unseen), **TOLERANCE)


@torch.no_grad()
def test_version_2_of_tresnet_and_average_pooling(tmp_path: Path) -> None:
    shapes = released.tresnet(L, bottleneck=True) | {"head.fc.weight": (23, 2048), "head.fc.bias": (23,)}
    state = released.random_tensors(shapes)
    images = torch.rand(1, 3, 64, 64)
    expected = literal.tresnet_map(state, images).mean(dim=(2, 3)) @ state["head.fc.weight"].T + state["head.fc.bias"]
    model = lw.load_checkpoint(saved(tmp_path, {"model": state}), labels=NAMES, size=64)
    torch.testing.assert_close(model(images), expected, atol=1e-3, rtol=1e-3)


def torchvision_resnet(seed: int = 0) -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(seed)
    theirs = resnet18().eval()
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    theirs.avgpool, theirs.fc = torch.nn.Identity(), torch.nn.Identity()
    return theirs, theirs.state_dict()


@pytest.mark.parametrize("projected", [False, True])
@torch.no_grad()
def test_query2label_computes_what_its_authors_code_does(projected: bool, tmp_path: Path) -> None:
    theirs, body = torchvision_resnet()
    dim = 64 if projected else 512
    state = released.random_tensors(released.query2label(512, 80, 2, dim, 96, projected))
    state["backbone.1.pe"] = literal.sine_positions(dim, 2)
    state |= {f"backbone.0.body.{key}": value for key, value in body.items() if "num_batches" not in key}
    # As its training script saves them: wrapped, from several GPUs, with scores and options beside the tensors.
    content = {f"module.{key}": value for key, value in state.items()}
    beside = {"epoch": 3, "best_mAP": np.float64(84.9), "args": argparse.Namespace(lr=1e-4, backbone="resnet18")}
    model = lw.load_checkpoint(saved(tmp_path, {"state_dict": content, **beside}))
    assert (model.config.preprocessing.size, model.config.backbone.name) == (64, "resnet18")
    assert model.config.head.tokens.project == projected
    images = torch.rand(2, 3, 64, 64)
    maps = theirs(images).view(2, 512, 2, 2)
    torch.testing.assert_close(model(images), literal.query2label_logits(state, maps, heads=4), **TOLERANCE)


@torch.no_grad()
def test_ram_plus_computes_what_its_authors_code_does(tmp_path: Path) -> None:
    swin = released.swin(96, (2, 2, 6, 2), (3, 6, 12, 24), window=7, size=224)
    shapes = below("visual_encoder.", swin) | released.ram_plus(768, 23, dim=32, texts=16, feedforward=40)
    state = released.random_tensors({key: shape for key, shape in shapes.items() if "attn_mask" not in key})
    state = {key: value for key, value in state.items() if "relative_position_index" not in key}
    (tmp_path / "tags.txt").write_text("\n".join(NAMES))
    (tmp_path / "thresholds.txt").write_text("0.65\n" * 22 + "0.8\n")
    file = saved(tmp_path, {"model": state})
    model = lw.load_checkpoint(file, labels=tmp_path / "tags.txt", thresholds=tmp_path / "thresholds.txt")
    assert model.config.backbone.name == "swin_tiny_patch4_window7_224"
    assert (model.thresholds[0], model.thresholds[-1]) == (0.65, 0.8)
    images = torch.randn(2, 3, 224, 224)
    expected = literal.ram_plus_logits(state, model.backbone(images), heads=4)
    torch.testing.assert_close(model(images), expected, **TOLERANCE)
    model.save(tmp_path / "model")
    assert lw.load(tmp_path / "model").predict(Image.new("RGB", (64, 64), (200, 30, 90)))[0].scores


@pytest.mark.parametrize(("temperatures", "lam"), [([1], None), ([1, 2, 4, 99], 0.7)])
@torch.no_grad()
def test_csra_computes_what_its_authors_code_does(temperatures: list[int], lam: float | None, tmp_path: Path) -> None:
    theirs, body = torchvision_resnet()
    state = body | released.random_tensors(released.csra(512, 20, len(temperatures)))
    model = lw.load_checkpoint(saved(tmp_path, state), size=64, residual_weight=lam)
    assert model.labels == tuple(VOC_LABELS)
    images = torch.rand(2, 3, 64, 64)
    maps = theirs(images).view(2, 512, 2, 2)
    expected = literal.csra_logits(state, maps, temperatures, 0.1 if lam is None else lam)
    torch.testing.assert_close(model(images), expected, **TOLERANCE)


def test_a_saved_checkpoint_is_a_model_like_any_other(tmp_path: Path) -> None:
    _, body = torchvision_resnet()
    file = saved(tmp_path, body | released.random_tensors(released.csra(512, 20, 1)))
    model = lw.load_checkpoint(file, size=64)
    model.save(tmp_path / "model")
    again = lw.load_model(tmp_path / "model")
    images = torch.rand(1, 3, 64, 64)
    assert torch.equal(again(images), model(images))
    assert lw.load(tmp_path / "model").labels == tuple(VOC_LABELS)
    with pytest.raises(LabelwiseError, match=r"lw\.load_checkpoint\(FILE\)\.save\(FOLDER\)"):
        lw.load_model(file)


def test_open_images_names_come_from_its_class_file(tmp_path: Path) -> None:
    state = released.random_tensors(TINY | {"head.fc.weight": (3, 2048), "head.fc.bias": (3,)})
    file = saved(tmp_path, {"model": state, "idx_to_class": {2: "/m/2", 0: "/m/0", 1: "/m/1"}})
    assert lw.load_checkpoint(file, size=64).labels == ("/m/0", "/m/1", "/m/2")
    classes = tmp_path / "oidv6-class-descriptions.csv"
    classes.write_text("LabelName,DisplayName\n/m/1,Crane\n/m/0,Tree\n/m/2,Crane\n")
    assert lw.load_checkpoint(file, size=64, labels=classes).labels == ("Tree", "Crane (/m/1)", "Crane (/m/2)")
    (tmp_path / "names.txt").write_text("oak\nbird\nmachine\n")
    assert lw.load_checkpoint(file, size=64, labels=tmp_path / "names.txt").labels == ("oak", "bird", "machine")
    without_ids = saved(tmp_path, state)
    assert lw.load_checkpoint(without_ids, size=64, labels=classes).labels == ("Crane (/m/1)", "Tree", "Crane (/m/2)")
    classes.write_text("/m/1,Crane\n/m/0,Tree\n")
    with pytest.raises(LabelwiseError, match="the model has 3 labels, and 2 names were found; give their names"):
        lw.load_checkpoint(without_ids, size=64, labels=classes)


def test_a_file_written_with_numpy_1(tmp_path: Path) -> None:
    """NumPy 2 moved the function that rebuilds its numbers; older files name the old place."""
    file = saved(tmp_path, {"best_mAP": np.float64(84.9), "state_dict": {"a": torch.ones(2)}})
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(tmp_path / "old.pth", "w") as new:
        for entry in old.namelist():
            new.writestr(entry, old.read(entry).replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert lw.backbones.read_state_dict(tmp_path / "old.pth")["a"].sum() == 2


BROKEN: dict[str, tuple[Shapes, dict[str, Any], str]] = {
    "a missing tensor of the head": (
        {"head.decoder.embed_standart.bias": ()}, {}, r"tensor 'embed_standart.bias' is missing",
    ),
    "a missing tensor of the backbone": (
        {"body.layer3.2.conv2.0.weight": ()}, {}, r"1 tensors are missing, e.g. 'body.layer3.2.conv2.conv.weight'",
    ),
    "an unknown tensor of the head": ({"head.extra": (3,)}, {}, "tensor 'extra' belongs to no part of the head"),
    "an unknown tensor of the backbone": (
        {"body.layer3.2.conv9.0.weight": (3,)}, {}, r"it has no tensor 'body.layer3.2.conv9.conv.weight'",
    ),
    "another number of blocks": (
        {f"body.layer3.6.conv{i}.0.weight": (3,) for i in (1, 2, 3)}, {}, "no backbone that can be recognised",
    ),
    "another shape": ({"head.decoder.query_embed.weight": (5, 31)}, {}, r"'query_embed.weight' is \[5, 31\]"),
    "no size": ({}, {"size": None}, r"for which image size it was trained \(size=…\)"),
    "no names": ({}, {"labels": None}, r"the model has 23 labels, and they are not in the file.*\(labels=…\)"),
    "too few names": ({}, {"labels": ["a", "b"]}, "23 labels, and 2 names were found"),
    "too few thresholds": ({}, {"thresholds": [0.5, 0.6]}, r"23 labels, not 2 \(thresholds=…\)"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_is_named(what: str, tmp_path: Path) -> None:
    changes, given, message = BROKEN[what]
    shapes = TINY | released.ml_decoder(2048, 23, 5, dim=32) | changes
    state = {key: torch.empty(shape, device="meta") for key, shape in shapes.items() if shape}
    file = saved(tmp_path, state)
    with torch.device("meta"), pytest.raises(LabelwiseError, match=message) as caught:
        lw.load_checkpoint(file, **{"labels": NAMES, "size": 64, **given})
    assert str(file) in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LabelwiseError, match=r"^no file 'mine.pth'$"):
        lw.load_checkpoint("mine.pth")
    with pytest.raises(LabelwiseError, match="`labelwise data download ml-decoder-coco-tresnet-l` puts it"):
        lw.load_checkpoint("tresnet_l_COCO__448_90_0.pth")
    with pytest.raises(LabelwiseError, match="not a checkpoint of ML-Decoder's, Query2Label's, CSRA's"):
        lw.load_checkpoint(saved(tmp_path, {"conv1.weight": torch.zeros(3)}))
    cvt = released.query2label(1024, 80, 24, 1024, 2048) | {"backbone.0.stage0.patch_embed.proj.weight": (192, 3, 7, 7)}
    state = {key: torch.empty(shape, device="meta") for key, shape in cvt.items()}
    with torch.device("meta"), pytest.raises(LabelwiseError, match=r"recognised .* 'stage0.patch_embed.proj.weight'"):
        lw.load_checkpoint(saved(tmp_path, state))
    bad = {key: torch.empty(shape, device="meta") for key, shape in (resnet_101() | released.csra(2048, 80, 4)).items()}
    del bad["classifier.multi_head.2.head.weight"]
    bad["classifier.multi_head.4.head.weight"] = torch.empty(80, 2048, 1, 1, device="meta")
    with torch.device("meta"), pytest.raises(LabelwiseError, match=r"'classifier.multi_head.2.head.weight' is missing"):
        lw.load_checkpoint(saved(tmp_path, bad))
    lambda_ = {key: torch.empty(shape, device="meta") for key, shape in (resnet_101() | released.csra(9, 7, 2)).items()}
    with pytest.raises(LabelwiseError, match=r"none for 7 labels and 2 heads \(residual_weight=…\)"):
        lw.load_checkpoint(saved(tmp_path, lambda_))
