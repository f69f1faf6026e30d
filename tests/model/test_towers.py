"""open_clip models as taggers: their own zero-shot logits, patches read one by one, and new labels without training."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import labelwise as lw
from labelwise.core.errors import LabelwiseError
from labelwise.words import WordsConfig, open_words
from labelwise.words.encoders import _encoder
from labelwise.words.prompts import PromptEncoder

open_clip = pytest.importorskip("open_clip")
towers = pytest.importorskip("tests.towers")  # needs transformers, too

LABELS = ["dog", "harbour", "sun"]
PROMPTS = [f"a photo of a {label}." for label in LABELS]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    root = tmp_path_factory.mktemp("towers")
    return {name: (root / name, towers.write_tower(root / name, config)) for name, config in towers.CONFIGS.items()}


def images_of(model: lw.LabelModel) -> Tensor:
    size = model.config.preprocessing.size
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", towers.CONFIGS)
@torch.no_grad()
def test_the_logits_are_open_clips_own(name: str, written: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    folder, theirs = written[name]
    model = lw.create_model(f"clip:{folder}", "text-aligned", LABELS).eval()
    images, tokenizer = images_of(model), open_clip.get_tokenizer(f"local-dir:{folder}")
    image = theirs.encode_image(images, normalize=True)
    texts = theirs.encode_text(tokenizer([*PROMPTS, "a photo of a ."]), normalize=True)
    cosines = theirs.logit_scale.exp() * image @ texts.T
    if name == "siglip":
        expected = cosines[:, :3] + theirs.logit_bias
    else:  # against the prompt without a label; a softmax over the labels does not see it
        expected = cosines[:, :3] - cosines[:, 3:]
        torch.testing.assert_close(model(images).softmax(dim=1), cosines[:, :3].softmax(dim=1), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model(images), expected, atol=1e-4, rtol=1e-4)
    preprocessing = model.config.preprocessing
    assert (preprocessing.mean, preprocessing.interpolation) == ((0.4, 0.5, 0.6), "bicubic")
    model.save(tmp_path / "model")
    again = lw.load_model(tmp_path / "model")
    assert torch.equal(again(images), model(images))
    torch.testing.assert_close(again.optimize()(images), expected, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(again.with_labels(["sun", "dog"])(images), expected[:, [2, 0]], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", towers.CONFIGS)
@torch.no_grad()
def test_patches_are_read_as_if_each_were_alone(name: str, written: dict[str, tuple[Path, Any]]) -> None:
    """open_clip's own layers, with a mask that lets patches see only themselves in the last attention."""
    folder, theirs = written[name]
    model = lw.create_model(f"clip:{folder}", "text-aligned", LABELS).eval()
    images, visual = images_of(model), theirs.visual
    if name == "clip":
        patches = visual.conv1(images).flatten(2).transpose(1, 2)  # [B, T, C]
        x = torch.cat((visual.class_embedding.expand(2, 1, -1), patches), dim=1) + visual.positional_embedding
        *before, last = visual.transformer.resblocks
        x = visual.ln_pre(x)
        for block in before:
            x = block(x)
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).fill_diagonal_(0)
        embedded = visual.ln_post(last(x, attn_mask=mask))[:, 1:] @ visual.proj
    elif name == "timm-clip":
        tokens = visual.trunk.forward_intermediates(images, indices=[4], intermediates_only=True, output_fmt="NLC")[0]
        alone = [visual.trunk.norm(visual.trunk.blocks[5](token[:, None]))[:, 0] for token in tokens.unbind(dim=1)]
        embedded = visual.head(torch.stack(alone, dim=1))
    else:
        tokens = visual.trunk.forward_features(images)[:, 1:]  # test_vit has a class token, which SigLIP does not read
        embedded = torch.stack([visual.trunk.attn_pool(token[:, None]) for token in tokens.unbind(dim=1)], dim=1)
    texts = theirs.encode_text(open_clip.get_tokenizer(f"local-dir:{folder}")(PROMPTS), normalize=True)
    logits = theirs.logit_scale.exp() * (F.normalize(embedded, dim=-1) @ texts.T)
    if name != "siglip":
        logits = logits - theirs.logit_scale.exp() * (F.normalize(embedded, dim=-1) @ model.head.negative)[..., None]
    maps = model.details(images).label_attention  # [B, N, H, W]
    torch.testing.assert_close(maps.flatten(2), logits.softmax(dim=1).transpose(1, 2), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("name", ["clip", "siglip"])
@torch.no_grad()
def test_prompts_start_at_the_written_ones_and_are_saved_as_vectors(
    name: str, written: dict[str, tuple[Path, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"clip:{written[name][0]}"
    plain, model = (lw.create_model(source, "text-aligned", LABELS, prompts=p).eval() for p in ("residual", "coop"))
    images = images_of(model)
    torch.testing.assert_close(model(images), plain(images), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.train()(images), plain(images), atol=1e-5, rtol=1e-5)
    model.head.context.add_(torch.randn_like(model.head.context) * 0.1)  # as if trained
    logits = model(images)
    assert not torch.allclose(logits, plain(images), atol=1e-3)
    model.save(tmp_path / "model")
    words = WordsConfig(source=source, templates=("a photo of a {}.",))
    expected = PromptEncoder(open_words(words), ["sun", "boat", "dog"])(model.head.context)
    again = lw.load_model(tmp_path / "model")
    torch.testing.assert_close(again(images), logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again.optimize()(images), logits, atol=1e-4, rtol=1e-3)
    other = again.with_labels(["sun", "boat", "dog"])  # one of them is new
    torch.testing.assert_close(other.head.word_vectors, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(other(images)[:, [2, 0]], logits[:, [0, 2]], atol=1e-4, rtol=1e-4)
    _encoder.cache_clear()
    monkeypatch.setitem(sys.modules, "open_clip", None)  # new words need the tower, nothing else does
    again = lw.load_model(tmp_path / "model")
    torch.testing.assert_close(again.with_labels(["sun"])(images), logits[:, [2]], atol=1e-5, rtol=1e-5)
    with pytest.raises(LabelwiseError, match="trained through a text tower"):
        again.train()(images)


@torch.no_grad()
def test_a_negative_text_for_each_label(written: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    """DualCoOp: scale * (cos(image, positive) - cos(image, negative)), each label with its own contexts."""
    folder, theirs = written["clip"]
    options = {"prompts": "dualcoop", "context": 6, "class_context": True}
    model = lw.create_model(f"clip:{folder}", "text-aligned", LABELS, **options)
    head = model.head
    assert head.context.shape == head.negative_context.shape == (3, 6, 16)
    images = images_of(model)
    image = theirs.encode_image(images, normalize=True)
    sides = [F.normalize(head.text_tower(context), dim=1) for context in (head.context, head.negative_context)]
    expected = theirs.logit_scale.exp() * image @ (sides[0] - sides[1]).T
    torch.testing.assert_close(model(images), expected, atol=1e-4, rtol=1e-4)
    model.save(tmp_path / "model")  # in training mode: what is saved is what the prompts are now
    again = lw.load_model(tmp_path / "model")
    torch.testing.assert_close(again(images), expected, atol=1e-4, rtol=1e-4)
    fewer = again.with_labels(["sun", "dog"])
    torch.testing.assert_close(fewer(images), expected[:, [2, 0]], atol=1e-4, rtol=1e-4)
    assert torch.equal(fewer.head.context, head.context[[2, 0]])
    more = again.with_labels(["sun", "cat"])
    torch.testing.assert_close(more(images)[:, :1], expected[:, 2:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(more.head.context[1], head.context.mean(dim=0))


def test_only_the_first_of_two_contexts_starts_at_the_written_words(written: dict[str, tuple[Path, Any]]) -> None:
    head = lw.create_model(f"clip:{written['clip'][0]}", "text-aligned", LABELS, prompts="dualcoop").head
    assert torch.equal(head.context[0], head.text_tower.words)
    assert head.negative_context.shape == head.context.shape
    assert not torch.allclose(head.negative_context, head.context, atol=1e-3)


def test_trained_contexts_find_their_labels(written: dict[str, tuple[Path, Any]]) -> None:
    """Twelve noisy images of three patterns, towers with random weights, 60 steps."""
    options = {"prompts": "dualcoop", "context": 4, "class_context": True, "size": 64}
    model = lw.create_model(f"clip:{written['siglip'][0]}", "text-aligned", LABELS, **options)
    generator = torch.Generator().manual_seed(2)
    patterns, targets = torch.randn(3, 3, 64, 64, generator=generator), torch.eye(3).repeat(4, 1)
    images = patterns.repeat(4, 1, 1, 1) + torch.randn(12, 3, 64, 64, generator=generator) * 0.5
    maps = model.backbone.eval()(images).detach()

    def score() -> float:
        return lw.metrics.mean_average_precision(model.head.eval()(maps).detach(), targets)

    before = score()
    optimizer = torch.optim.Adam([model.head.context, model.head.negative_context], lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model.head.train()(maps), targets).backward()
        optimizer.step()
    assert before < 0.8
    assert score() > 0.95


def test_an_export_with_a_class_token(written: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    options = {"patch_weight": 0.5, "prompts": "dualcoop", "context": 5}  # of which an export has only the texts
    model = lw.create_model(f"clip:{written['timm-clip'][0]}", "text-aligned", LABELS, size=64, **options).eval()
    exported = lw.export(model, out=tmp_path / "onnx")
    images = torch.randn(3, 3, 64, 64)  # another batch size than it was traced with
    evidence = exported.open().evidence(images.numpy())
    details = model.details(images)
    torch.testing.assert_close(torch.from_numpy(evidence.logits), details.logits, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(torch.from_numpy(evidence.attention[:, -1]), details.attention, atol=1e-4, rtol=1e-3)


def test_a_saved_model_needs_open_clip_only_for_new_words(
    written: dict[str, tuple[Path, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lw.create_model(f"clip:{written['siglip'][0]}", "text-aligned", LABELS).save(tmp_path / "model")
    _encoder.cache_clear()
    monkeypatch.setitem(sys.modules, "open_clip", None)
    model = lw.load_model(tmp_path / "model")
    assert model.with_labels(["sun"]).labels == ("sun",)
    with pytest.raises(LabelwiseError, match=r"pip install 'labelwise\[clip\]'"):
        model.with_labels(["sun", "cat"])


def test_other_heads_and_random_weights_on_a_tower(written: dict[str, tuple[Path, Any]]) -> None:
    source = f"clip:{written['timm-clip'][0]}"
    model = lw.create_model(source, "gap", LABELS, size=96)
    assert (model.config.backbone.size, model.backbone.channels, model.config.words) == (96, 64, None)
    theirs = written["timm-clip"][1].visual.trunk.state_dict()
    torch.testing.assert_close(
        model.backbone.model.state_dict()["blocks.3.attn.qkv.weight"], theirs["blocks.3.attn.qkv.weight"]
    )
    random = lw.create_model(source, "text-aligned", LABELS, weights="none")
    assert random.head.logit_bias.item() == -10
    with pytest.raises(LabelwiseError, match=r"do not fit its tower: .*project\.weight"):
        lw.create_model(source, "text-aligned", LABELS, word_vectors=torch.randn(3, 50))
    with pytest.raises(LabelwiseError, match="brings its own weights"):
        lw.create_model(source, "gap", LABELS, weights="mine.pth")


def test_what_cannot_be_a_tower_is_named(tmp_path: Path) -> None:
    resnet = {**towers.CONFIGS["clip"], "vision_cfg": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8}}
    towers.write_tower(tmp_path / "resnet", resnet)
    with pytest.raises(LabelwiseError, match="is not one that timm has; these work: vit_base_patch16_clip"):
        lw.create_model(f"clip:{tmp_path / 'resnet'}", "text-aligned", LABELS)
    (tmp_path / "resnet" / "open_clip_model.safetensors").unlink()
    (tmp_path / "resnet").rename(tmp_path / "empty")
    with pytest.raises(LabelwiseError, match=r"no CLIP model .* could not be loaded"):
        lw.create_model(f"clip:{tmp_path / 'empty'}", "text-aligned", LABELS)
    with pytest.raises(LabelwiseError, match="'resnet18' has no class token"):
        lw.backbones.Backbone(lw.backbones.BackboneConfig(name="resnet18", class_token=True))


def test_a_tower_never_runs_code_of_its_folder(tmp_path: Path) -> None:
    """A tokenizer with code of its own, in a config that allows it."""
    config = json.loads(json.dumps(towers.CONFIGS["siglip"]))
    towers.write_tower(tmp_path / "tower", config)
    config["text_cfg"]["tokenizer_kwargs"]["trust_remote_code"] = True
    (tmp_path / "tower" / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    mark = tmp_path / "mark"
    (tmp_path / "tower" / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")
    settings = json.loads((tmp_path / "tower" / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (tmp_path / "tower" / "tokenizer_config.json").write_text(json.dumps(settings))
    with suppress(LabelwiseError):
        lw.create_model(f"clip:{tmp_path / 'tower'}", "text-aligned", LABELS)
    assert not mark.exists()
