"""Zero-shot heads: the kit that all heads pass, and parity with a literal reading of their papers."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from head_kit import CHANNELS, LABELS, HeadKit
from labelwise import heads, losses
from labelwise.core.errors import LabelwiseError
from labelwise.heads.attention_per_cluster import AttentionPerClusterHead
from labelwise.heads.attention_per_label import AttentionPerLabelHead
from labelwise.heads.biam import BiamHead
from labelwise.heads.conse import ConseHead
from labelwise.heads.fast0tag import Fast0TagHead
from labelwise.heads.lesa import LesaHead
from labelwise.heads.sdl import SdlHead
from labelwise.model.model import create_model
from tests.oracles import zero_shot as oracle

ZERO_SHOT = ("conse", "fast0tag", "attention-per-label", "attention-per-cluster", "lesa", "biam", "sdl")
WORDS = torch.randn(LABELS, 7, generator=torch.Generator().manual_seed(3))


class TestConse(HeadKit):
    name = "conse"
    options: ClassVar[dict[str, Any]] = {"word_vectors": WORDS, "top": 4}


class TestFast0Tag(HeadKit):
    name = "fast0tag"
    options: ClassVar[dict[str, Any]] = {"word_vectors": WORDS}


class TestFast0TagNetwork(HeadKit):
    name = "fast0tag"
    options: ClassVar[dict[str, Any]] = {"word_vectors": WORDS, "hidden": (11, 9), "dropout": 0.5}


class TestAttentionPerLabel(HeadKit):
    name = "attention-per-label"
    options: ClassVar[dict[str, Any]] = {"word_vectors": WORDS, "rank": 5}


class TestAttentionPerCluster(HeadKit):
    name = "attention-per-cluster"
    options: ClassVar[dict[str, Any]] = {"word_vectors": WORDS, "attentions": 3, "dim": 10}


class TestLesa(HeadKit):
    name = "lesa"
    options: ClassVar[dict[str, Any]] = {"word_vectors": WORDS, "attentions": 3}


class TestBiam(HeadKit):
    name = "biam"
    options: ClassVar[dict[str, Any]] = {"word_vectors": WORDS, "dim": 8, "attention_heads": 2, "out_dim": 10}

    def test_tokens_give_the_same_as_the_map(self) -> None:
        """The paper's convolutions need the map: tokens alone do not say which regions are neighbours."""
        with pytest.raises(LabelwiseError, match="give it the map"):
            self.head()(torch.randn(2, 12, CHANNELS))
        head, x = self.head(kernel=1), torch.randn(2, CHANNELS, 3, 4)
        torch.testing.assert_close(head(x.flatten(2).transpose(1, 2)), head(x))


class TestSdl(HeadKit):
    name = "sdl"
    options: ClassVar[dict[str, Any]] = {"word_vectors": WORDS, "directions": 3}


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


@pytest.mark.parametrize("top", [1, 4, 100])
def test_conse_mixes_the_words_of_the_surest_labels(top: int) -> None:
    torch.manual_seed(0)
    head = heads.create("conse", in_features=CHANNELS, labels=LABELS, word_vectors=WORDS, top=top).eval()
    assert isinstance(head, ConseHead)
    x, asked = torch.randn(3, CHANNELS, 2, 2), torch.randn(5, 7)
    other = head.relabelled(list("abcdefghijklm"), list("vwxyz"), asked)
    for image, logits in zip(x, other(x).tolist(), strict=True):
        p = torch.sigmoid(head.classifier.weight @ image.mean(dim=(1, 2)) + head.classifier.bias).tolist()
        surest = sorted(range(LABELS), key=lambda i: -p[i])[:top]
        total = sum(p[i] for i in surest)
        mixture = sum((p[i] / total * WORDS[i] for i in surest), torch.zeros(7))
        assert logits == pytest.approx([cosine(mixture, word) for word in asked], abs=1e-5)


def test_conse_is_trained_as_a_plain_classifier() -> None:
    head = heads.create("conse", in_features=CHANNELS, labels=LABELS, word_vectors=WORDS).train()
    assert isinstance(head, ConseHead)
    x = torch.randn(2, CHANNELS, 3, 3)
    torch.testing.assert_close(head(x), head.classifier(x.mean(dim=(2, 3))))


def test_fast0tag_is_a_linear_map_into_the_words_space() -> None:
    head = heads.create("fast0tag", in_features=CHANNELS, labels=LABELS, word_vectors=WORDS).eval()
    assert isinstance(head, Fast0TagHead)
    x = torch.randn(2, CHANNELS, 3, 3)
    (layer,) = head.direction
    for image, logits in zip(x, head(x), strict=True):
        features = image.mean(dim=(1, 2))
        direction = layer.weight @ (features / features.norm()) + layer.bias
        expected = torch.stack([direction @ (word / word.norm()) for word in WORDS])
        torch.testing.assert_close(logits, expected)


def test_attention_per_label_is_bilinear() -> None:
    head = TestAttentionPerLabel().head()
    assert isinstance(head, AttentionPerLabelHead)
    maps = torch.randn(2, CHANNELS, 2, 3)
    for image, logits in zip(maps.flatten(2).transpose(1, 2), head(maps).tolist(), strict=True):
        assert logits == pytest.approx(oracle.attention_per_label(head, image, WORDS), abs=1e-5)


def test_lesa_selects_the_best_attention_for_each_label() -> None:
    head = TestLesa().head()
    assert isinstance(head, LesaHead)
    maps = torch.randn(2, CHANNELS, 2, 3)
    images = maps.flatten(2).transpose(1, 2)
    for image, logits, looked in zip(images, head(maps).tolist(), head.details(maps).label_attention, strict=True):
        assert logits == pytest.approx(oracle.lesa(head, image, WORDS), abs=1e-5)
        scores = looked.flatten(1) @ image @ head.label_vectors(WORDS).T  # the map shown is the one that scored
        assert scores.diag().tolist() == pytest.approx(logits, abs=1e-5)


def test_lesa_adds_its_three_regularizers() -> None:
    torch.manual_seed(0)
    maps, targets = torch.randn(3, CHANNELS, 2, 2), torch.randint(-1, 2, (3, LABELS))
    head = TestLesa().head()
    assert isinstance(head, LesaHead)
    plain = head(maps)
    expected = oracle.lesa_regularizers(head, maps.flatten(2).transpose(1, 2), WORDS, targets)
    for name, value in zip(("diversity", "relevance", "distribution"), expected, strict=True):
        weights = {"diversity": 0.0, "relevance": 0.0, "distribution": 0.0, name: 1.0}
        twin = TestLesa().head(**weights).train()
        terms = twin.loss_terms(twin(maps), targets)
        torch.testing.assert_close(terms.logits, plain)
        assert torch.equal(terms.targets, targets)
        assert float(torch.as_tensor(terms.penalty).detach()) == pytest.approx(value, rel=1e-4), name
    assert torch.equal(head.loss_terms(plain, targets).logits, plain)  # in evaluation mode: nothing to add


def test_a_cluster_of_labels_has_one_attention() -> None:
    head = TestAttentionPerCluster().head(dim=None)
    assert isinstance(head, AttentionPerClusterHead)
    maps = torch.randn(2, CHANNELS, 2, 3)
    centres = head.centres
    nearest = [min(range(3), key=lambda m: float((oracle.unit(w) - centres[m]).norm())) for w in WORDS]
    assert set(nearest) == {0, 1, 2}
    for m in range(3):  # k-means: a centre is the mean of its members
        members = [oracle.unit(w) for w, cluster in zip(WORDS, nearest, strict=True) if cluster == m]
        torch.testing.assert_close(centres[m], torch.stack(members).mean(dim=0))
    thetas = oracle.vectors(head.label_vectors.project, WORDS)
    for image, logits in zip(maps.flatten(2).transpose(1, 2), head(maps).tolist(), strict=True):
        _, attended = oracle.lesa_attentions(head, image)
        expected = [float(theta @ attended[m]) for theta, m in zip(thetas, nearest, strict=True)]
        assert logits == pytest.approx(expected, abs=1e-5)


def test_new_labels_join_the_clusters_of_the_training() -> None:
    head = TestAttentionPerCluster().head()
    other = head.relabelled(list("abcdefghijklm"), ["x", "c"], torch.stack([-WORDS[0], WORDS[2]]))
    assert torch.equal(other.centres, head.centres)
    maps = torch.randn(2, CHANNELS, 2, 2)
    torch.testing.assert_close(other(maps)[:, 1], head(maps)[:, 2])


@pytest.mark.parametrize("grid", [(1, 2), (3, 4)])  # fewer and more regions than the best six
def test_biam_reads_each_label_from_its_best_regions(grid: tuple[int, int]) -> None:
    head = TestBiam().head()
    assert isinstance(head, BiamHead)
    for name, buffer in head.named_buffers():  # batch norms that have seen something
        if "running" in name:
            buffer.uniform_(0.5, 1.5)
    maps = torch.randn(2, CHANNELS, *grid)
    for image, logits in zip(maps, head(maps).tolist(), strict=True):
        assert logits == pytest.approx(oracle.biam(head, image, WORDS), abs=1e-5)


@pytest.mark.parametrize("directions", [1, 3])
def test_sdl_with_its_loss(directions: int) -> None:
    torch.manual_seed(0)
    head = TestSdl().head(directions=directions, variance=0.3).train()
    assert isinstance(head, SdlHead)
    maps, targets = torch.randn(4, CHANNELS, 2, 2), (torch.rand(4, LABELS) < 0.3).long()
    targets[:, 5] = 1
    targets[0] = (torch.arange(LABELS) == 5).long()  # one label: no diversity
    terms = head.loss_terms(head(maps), targets)
    loss = losses.create("ranking", divide_by="present").weighted(terms.logits, terms.targets, terms.image_weights)
    pooled = maps.mean(dim=(2, 3))
    matrices = [head.embedding(features).view(directions, -1) for features in pooled]
    if directions == 1:  # torch has no variance of one row: two equal ones have none
        matrices = [matrix.expand(2, -1) for matrix in matrices]
    expected = [
        oracle.sdl_loss(matrix, WORDS, target, 0.3) for matrix, target in zip(matrices, targets.tolist(), strict=True)
    ]
    assert float((loss + terms.penalty).detach()) == pytest.approx(sum(expected) / 4, rel=1e-4)


@pytest.mark.parametrize("name", ZERO_SHOT)
def test_other_labels_after_training(name: str, tmp_path: Any) -> None:
    """Any list, any order: scores follow the labels, and a model with other labels is saved and loaded as it is."""
    labels = tuple("abcdefghijklm")
    model = create_model("test_resnet", name, labels, weights="none", size=32, word_vectors=WORDS).eval()
    x = torch.randn(2, 3, 32, 32)
    new = torch.randn(1, 7)
    chosen = model.with_labels(["c", "new", "a"], torch.cat([WORDS[2:3], new, WORDS[:1]]))
    torch.testing.assert_close(chosen(x)[:, [2, 0]], model(x)[:, [0, 2]])
    assert not torch.equal(chosen(x)[:, 1], chosen(x)[:, 0])
    chosen.save(tmp_path / "model")
    loaded = type(model).from_pretrained(tmp_path / "model")
    assert loaded.labels == ("c", "new", "a")
    assert torch.equal(loaded(x), chosen(x))
    back = loaded.with_labels(labels, WORDS)  # what the classifier learned is still there
    torch.testing.assert_close(back(x), model(x))


@pytest.mark.parametrize("name", ZERO_SHOT)
def test_word_vectors_are_needed(name: str) -> None:
    with pytest.raises(LabelwiseError, match="need word_vectors"):
        heads.create(name, in_features=CHANNELS, labels=LABELS)
    with pytest.raises(LabelwiseError, match=r"must be \[13, 7\], not \[12, 7\]"):
        heads.create(name, in_features=CHANNELS, labels=LABELS, word_vectors=WORDS[1:])
