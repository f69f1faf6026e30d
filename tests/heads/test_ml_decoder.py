"""ML-Decoder against timm's layers and the loops of appendices K and L; public weights in both key layouts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from labelwise import heads
from labelwise.core.errors import LabelwiseError
from labelwise.heads import load_ml_decoder
from tests.oracles.peers import RepairedMLDecoder

CHANNELS, DIM, BATCH = 24, 32, 3
TOLERANCE = {"atol": 1e-5, "rtol": 0}


def timm_head(labels: int, groups: int) -> RepairedMLDecoder:
    head = RepairedMLDecoder(labels, num_of_groups=groups, decoder_embedding=DIM, initial_num_features=CHANNELS).eval()
    torch.nn.init.normal_(head.duplicate_pooling_bias)
    return head


def appendix_k(g: Tensor, group_weights: Tensor, classes: int) -> Tensor:
    output = torch.zeros(g.shape[0], g.shape[1], group_weights.shape[2])
    for i in range(g.shape[1]):
        output[:, i] = g[:, i] @ group_weights[i]
    return output.flatten(1)[:, :classes]


@pytest.mark.parametrize(("labels", "groups"), [(20, 20), (100, 10), (101, 10), (7, 100)])
def test_parity_with_timm(labels: int, groups: int) -> None:
    theirs = timm_head(labels, groups)
    ours = load_ml_decoder(theirs.state_dict()).eval()
    x = torch.randn(BATCH, CHANNELS, 5, 4)
    torch.testing.assert_close(ours(x), theirs(x), **TOLERANCE)


def test_training_goes_the_same_way_as_timms() -> None:
    """Same gradients too, dropout aside."""
    theirs = timm_head(101, 10).train()
    ours = load_ml_decoder(theirs.state_dict()).train()
    for module in [*theirs.modules(), *ours.modules()]:
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    x = torch.randn(BATCH, CHANNELS, 5, 4)
    ours(x).square().sum().backward()
    theirs(x).square().sum().backward()
    torch.testing.assert_close(ours.classifier.weights.weight.grad, theirs.duplicate_pooling.grad, atol=1e-3, rtol=1e-4)
    mine, other = ours.tokens.project.weight.grad, theirs.embed_standart.weight.grad
    torch.testing.assert_close(mine, other, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("prefix", ["", "head.", "fc.", "module.model.head."])
@pytest.mark.parametrize("authors", [False, True])
def test_public_key_layouts_load(prefix: str, authors: bool) -> None:
    """The authors hang everything on `decoder`; whole models put a prefix in front and other tensors beside it."""
    theirs = timm_head(30, 10)
    state = theirs.state_dict()
    if authors:
        state = {key if key.startswith("decoder.") else f"decoder.{key}": value for key, value in state.items()}
    whole = {f"{prefix}{key}": value for key, value in state.items()}
    if prefix:
        whole["body.conv1.weight"] = torch.zeros(3)
    ours = load_ml_decoder(whole).eval()
    x = torch.randn(BATCH, CHANNELS, 2, 2)
    torch.testing.assert_close(ours(x), theirs(x), **TOLERANCE)


def test_broken_public_weights_are_named() -> None:
    state = timm_head(30, 10).state_dict()
    with pytest.raises(LabelwiseError, match="no ML-Decoder in these weights"):
        load_ml_decoder({"conv1.weight": torch.zeros(3)})
    with pytest.raises(LabelwiseError, match=r"not complete: tensor 'embed_standart.weight' is missing"):
        load_ml_decoder({k: v for k, v in state.items() if "embed_standart" not in k})
    with pytest.raises(LabelwiseError, match=r"'query_embed.weight' is \[3, 32\], where the others ask for \[10, 32\]"):
        load_ml_decoder({**state, "query_embed.weight": torch.zeros(3, DIM)})
    with pytest.raises(LabelwiseError, match=r"tensor 'extra.weight' belongs to no part of the head"):
        load_ml_decoder({**state, "extra.weight": torch.zeros(3)})


def test_group_permutation_is_seeded_and_travels_with_the_weights() -> None:
    def head(seed: int | None) -> heads.Head:
        torch.manual_seed(0)
        return heads.create("ml-decoder", in_features=8, labels=50, dim=8, groups=7, group_seed=seed).eval()

    first, again, other, ordered = head(3), head(3), head(4), head(None)
    assert torch.equal(first.label_slot, again.label_slot)
    assert not torch.equal(first.label_slot, other.label_slot)
    assert torch.equal(ordered.label_slot, torch.arange(50))
    other.load_state_dict(first.state_dict())
    x = torch.randn(2, 8, 2, 2)
    assert torch.equal(other(x), first(x))
    torch.testing.assert_close(first(x), ordered(x)[:, first.label_slot])  # biases are zero: only the slots differ


def appendix_l(g: Tensor, words: Tensor, w: Tensor, groups: int, per_group: int) -> Tensor:
    weights = torch.zeros(groups, w.shape[0], per_group)
    for i in range(words.shape[0]):
        weights[i // per_group, :, i % per_group] = w @ words[i]
    return appendix_k(g, weights, words.shape[0])


@pytest.mark.parametrize(("labels", "groups"), [(12, 4), (13, 5), (6, 6)])
def test_zero_shot_groups_by_equations_5_and_6(labels: int, groups: int) -> None:
    words = torch.randn(labels, 9)
    head = heads.create(
        "ml-decoder",
        in_features=CHANNELS,
        labels=labels,
        dim=DIM,
        groups=groups,
        group_seed=None,
        queries="words",
        classifier="words",
        word_vectors=words,
    ).eval()
    g = head.group_size
    x = torch.randn(BATCH, CHANNELS, 3, 3)
    queries = torch.zeros(groups, DIM)
    for k in range(groups):  # eq. 5: concatenation of the projections of the group's words
        for j, i in enumerate(range(k * g, min((k + 1) * g, labels))):
            queries[k, j * (DIM // g) : (j + 1) * (DIM // g)] = head.queries.project.weight @ words[i]
    torch.testing.assert_close(head.queries(torch.cat((words, words.new_zeros(groups * g - labels, 9)))), queries)
    tokens, _ = head.tokens(x.flatten(2).transpose(1, 2), None)
    decoded = head.decoder(queries, tokens, None)
    expected = appendix_l(decoded, words, head.classifier.project.weight.T, groups, g)
    torch.testing.assert_close(head(x), expected, **TOLERANCE)


@pytest.mark.parametrize("queries", ["learnable", "random"])
def test_only_learnable_queries_train(queries: str) -> None:
    head = heads.create("ml-decoder", in_features=8, labels=5, dim=8, queries=queries)
    assert head.queries.weight.requires_grad == (queries == "learnable")
    assert "queries.weight" in head.state_dict()
