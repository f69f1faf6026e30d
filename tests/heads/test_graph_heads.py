"""Heads on graphs of the labels: the kit that all heads pass, and parity with a literal reading of their papers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

import pytest
import torch
from torch import Tensor

from head_kit import CHANNELS, LABELS, HeadKit, small_options
from labelwise import heads
from labelwise.core.errors import LabelwiseError
from labelwise.heads.add_gcn import AddGcnHead
from labelwise.heads.base import as_attention
from labelwise.heads.cma import CmaHead, similarity_embeddings
from labelwise.heads.graph_configs import CmaConfig
from labelwise.heads.graphs import DynamicGraph
from labelwise.heads.kssnet import KssnetHead
from labelwise.heads.ml_gcn import MlGcnHead
from labelwise.heads.ssgrl import SsgrlHead
from labelwise.heads.tdrg import TdrgHead

if TYPE_CHECKING:
    from labelwise.heads.kssnet import LabelSide
    from labelwise.heads.ssgrl import Chain


class TestMlGcn(HeadKit):
    name = "ml-gcn"
    options: ClassVar = small_options("ml-gcn")


class TestSsgrl(HeadKit):
    name = "ssgrl"
    options: ClassVar = small_options("ssgrl")


class TestAddGcn(HeadKit):
    name = "add-gcn"
    options: ClassVar = small_options("add-gcn")


class TestKssnet(HeadKit):
    name = "kssnet"
    options: ClassVar = small_options("kssnet")


class TestCma(HeadKit):
    name = "cma"
    options: ClassVar = small_options("cma")


class TestTdrg(HeadKit):
    name = "tdrg"
    options: ClassVar = {**small_options("tdrg"), "encoder_layers": 1, "feedforward": 32}


def leaky(x: float) -> float:
    return x if x > 0 else 0.2 * x


def literal_product(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]


def test_ml_gcn_equation_by_equation() -> None:
    """With loops and Python's floats; the threshold and p are the paper's."""
    head = TestMlGcn().head()
    assert isinstance(head, MlGcnHead)
    together = small_options("ml-gcn")["cooccurrence"].tolist()
    edges = [[float(i != j and together[i][j] >= 0.4) for j in range(LABELS)] for i in range(LABELS)]  # eq. 7
    assert all(sum(row) for row in edges)  # then eq. 8 is normalized as it stands
    adjacency = [
        [0.8 if i == j else 0.2 * edges[i][j] / sum(edges[i]) for j in range(LABELS)] for i in range(LABELS)
    ]  # eq. 8
    first, second = (layer.weight.T.tolist() for layer in head.graph.layers)
    hidden = literal_product(adjacency, literal_product(small_options("ml-gcn")["word_vectors"].tolist(), first))
    hidden = [[leaky(value) for value in row] for row in hidden]
    classifiers = literal_product(adjacency, literal_product(hidden, second))  # eq. 2
    x = torch.randn(2, CHANNELS, 3, 3)
    pooled = [[float(channel.max()) for channel in image] for image in x]  # eq. 3
    expected = literal_product(pooled, [list(column) for column in zip(*classifiers, strict=True)])  # eq. 4
    torch.testing.assert_close(head(x), torch.tensor(expected))


def test_ml_gcn_has_the_tensors_of_the_authors_code() -> None:
    """On ResNet-101 and GloVe: two matrices without bias, 300 x 1024 and 1024 x 2048, for any number of labels."""
    head = heads.create("ml-gcn", in_features=2048, labels=80, word_dim=300)
    assert [tuple(p.shape) for p in head.parameters()] == [(1024, 300), (2048, 1024)]
    assert sum(p.numel() for p in head.parameters()) == 2_404_352


def test_an_optimized_ml_gcn_is_one_classifier() -> None:
    fast = heads.optimize(TestMlGcn().head())
    assert {name: tuple(tensor.shape) for name, tensor in fast.state_dict().items()} == {
        "graph.output": (LABELS, CHANNELS)
    }


def test_a_label_without_neighbours_keeps_itself() -> None:
    alone = torch.eye(LABELS)
    head = heads.create("ml-gcn", in_features=CHANNELS, labels=LABELS, word_dim=10, cooccurrence=alone)
    assert isinstance(head.adjacency, Tensor)
    torch.testing.assert_close(head.adjacency, torch.eye(LABELS))


@pytest.mark.parametrize("graph_dim", [None, 6])
def test_ssgrl_equation_by_equation(graph_dim: int | None) -> None:
    """Label by label and position by position, with the biases of eq. 3 and 4 that the softmax of eq. 5 cancels."""
    head, x = TestSsgrl().head(graph_dim=graph_dim), torch.randn(1, CHANNELS, 2, 3)
    assert isinstance(head, SsgrlHead)
    words, together = (small_options("ssgrl")[key] for key in ("word_vectors", "cooccurrence"))
    positions = x[0].flatten(1).T  # [T, C]
    score = cast("Chain", head.score)
    features = []
    for word in words:
        seen = [
            score.first(torch.tanh(head.image_side(position) * head.word_side(word))) + 0.3 for position in positions
        ]  # eq. 3
        attention = torch.stack([score.second(one) + 0.7 for one in seen]).softmax(dim=0)  # eq. 4 and 5
        features.append((attention * head.reduce(positions)).sum(dim=0))  # eq. 6
    state = list(features)
    w_z, w_r, w_h = head.interact.from_messages.weight.chunk(3)
    b_z, b_r, b_h = head.interact.from_messages.bias.chunk(3)
    u_z, u_r = head.interact.from_state.weight.chunk(2)
    others = [[j for j in range(LABELS) if j != i] for i in range(LABELS)]
    for _ in range(2):
        after = []
        for i in range(LABELS):
            taken = sum(together[i, j] * state[j] for j in others[i])
            given = sum(together[j, i] * state[j] for j in others[i])
            message = torch.cat((taken, given))  # eq. 7
            z = torch.sigmoid(w_z @ message + b_z + u_z @ state[i])
            r = torch.sigmoid(w_r @ message + b_r + u_r @ state[i])
            new = torch.tanh(w_h @ message + b_h + head.interact.from_reset(r * state[i]))
            after.append((1 - z) * state[i] + z * new)  # eq. 8
        state = after
    out = [torch.tanh(head.output(torch.cat(pair))) for pair in zip(state, features, strict=True)]
    logits = [w @ o + b for w, o, b in zip(head.classifier.weight, out, head.classifier.bias, strict=True)]  # eq. 9
    torch.testing.assert_close(head(x)[0], torch.stack(logits), atol=1e-5, rtol=1e-4)


def literal_dynamic_graph(graph: DynamicGraph, nodes: list[Tensor], pooled: Tensor) -> list[Tensor]:
    """Rows of A = sigmoid(W_A [h_c; g]), with the concatenation that the head does without."""
    w_a = torch.cat((graph.from_nodes.weight, graph.from_global.weight), dim=1)
    overall = torch.nn.functional.leaky_relu(graph.project(pooled), 0.2)
    return [torch.sigmoid(w_a @ torch.cat((node, overall)) + graph.from_nodes.bias) for node in nodes]


@pytest.mark.parametrize("optimized", [False, True])
def test_add_gcn_step_by_step(optimized: bool) -> None:
    made, x = TestAddGcn().head(), torch.randn(1, CHANNELS, 5, 6)
    head = heads.optimize(made, tokens=30) if optimized else made
    assert isinstance(made, AddGcnHead)
    assert isinstance(head, AddGcnHead)
    assert head.nodes.mask_first == optimized  # 13 labels, 30 tokens: the sums are fewer than the tokens
    positions = x[0].flatten(1).T
    maps = [[w @ position for position in positions] for w in made.activation.weight]  # [N][T]
    nodes = [
        sum(torch.sigmoid(m) * made.nodes.project(position) for m, position in zip(row, positions, strict=True))
        for row in maps
    ]
    leaky_relu = torch.nn.functional.leaky_relu
    static = [sum(a * made.static(node) for a, node in zip(row, nodes, strict=True)) for row in made.static_adjacency]
    hidden = [node + leaky_relu(one, 0.2) for node, one in zip(nodes, static, strict=True)]
    adjacency = literal_dynamic_graph(made.dynamic_adjacency, hidden, sum(hidden) / LABELS)
    dynamic = [sum(a * made.dynamic(one) for a, one in zip(row, hidden, strict=True)) for row in adjacency]
    related = [node + leaky_relu(one, 0.2) for node, one in zip(nodes, dynamic, strict=True)]
    for label in range(LABELS):
        by_graph = made.classifier.weight[label] @ related[label] + made.classifier.bias[label]
        torch.testing.assert_close(head(x)[0, label], (by_graph + max(maps[label])) / 2, atol=1e-4, rtol=1e-4)


def test_kssnet_superimposes_both_graphs() -> None:
    options = small_options("kssnet")
    words, together = options["word_vectors"], options["cooccurrence"]
    head = TestKssnet().head(knowledge_weight=0.3, edge_threshold=0.05)
    expected = torch.zeros(LABELS, LABELS)
    for i in range(LABELS):
        others = [j for j in range(LABELS) if j != i]
        near = {j: max(0.0, float(torch.cosine_similarity(words[i], words[j], dim=0))) for j in others}
        often = {j: float(together[i, j]) for j in others}
        mixed = {j: 0.3 * near[j] / sum(near.values()) + 0.7 * often[j] / sum(often.values()) for j in others}
        kept = {j: weight for j, weight in mixed.items() if weight >= 0.05}
        assert 0 < len(kept) < len(others)  # then eq. 8 needs no further normalization
        for j, weight in kept.items():
            expected[i, j] = 0.4 * weight / sum(kept.values())
        expected[i, i] = 0.6
    torch.testing.assert_close(head.adjacency, expected)


def test_kssnet_injects_labels_into_the_features() -> None:
    head, x = TestKssnet().head(), torch.randn(2, CHANNELS, 3, 3)
    assert isinstance(head, KssnetHead)
    side = cast("LabelSide", head.label_side)
    embeddings = side.embed(head.word_vectors, head.adjacency)
    hidden = torch.where(embeddings > 0, embeddings, 0.2 * embeddings)
    weights = torch.tanh(head.adjacency @ side.classify.layers[0](hidden)) + side.weight
    pooled = torch.zeros(2, CHANNELS)
    for position in x.flatten(2).unbind(dim=2):  # [2, C]
        pooled += (position + head.lateral(position @ embeddings.tanh().T)).clamp(min=0) / 9
    torch.testing.assert_close(head(x), pooled @ weights.T + head.bias, atol=1e-5, rtol=1e-4)


def test_cma_attends_by_cosine() -> None:
    head, x = TestCma().head(), torch.randn(1, CHANNELS, 2, 3)
    assert isinstance(head, CmaHead)
    positions, details = x[0].flatten(1).T, head.details(x)
    for label, embedding in enumerate(head.label_embeddings):
        cosines = [torch.cosine_similarity(head.project(position), embedding, dim=0) for position in positions]
        weights = torch.stack(cosines).clamp(min=0)
        attention = weights / weights.sum() if weights.any() else torch.full((6,), 1 / 6)
        torch.testing.assert_close(details.label_attention[0, label].flatten(), attention, atol=1e-5, rtol=1e-4)
        feature = (attention[:, None] * positions).sum(dim=0)
        logit = head.classifier.weight[label] @ feature + head.classifier.bias[label]
        torch.testing.assert_close(details.logits[0, label], logit, atol=1e-5, rtol=1e-4)


def test_cma_places_labels_by_what_occurs_together() -> None:
    """Four pairs of labels that always come together, and never with others; word vectors that know nothing of it."""
    torch.manual_seed(0)
    together = torch.block_diag(*(torch.ones(2, 2) for _ in range(4)))
    embeddings = similarity_embeddings(torch.randn(8, 10), together, CmaConfig(dim=16, steps=100))
    cosines = embeddings @ embeddings.T
    assert cosines[together == 1].min() > 0.95
    assert cosines[together == 0].max() < 0.15  # relaxed: at most about 0.1, not exactly 0
    assert cosines.diagonal() == pytest.approx(torch.ones(8))


def test_cma_without_statistics_still_learns() -> None:
    options = small_options("cma") | {"cooccurrence": None}
    with torch.inference_mode():
        heads.create("cma", in_features=CHANNELS, labels=LABELS, **options)
    with torch.no_grad():  # its embeddings are fitted with gradients of their own
        head = heads.create("cma", in_features=CHANNELS, labels=LABELS, **options)
    head(torch.randn(2, CHANNELS, 3, 3)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in head.parameters())


def test_tdrg_step_by_step() -> None:
    head, x = TestTdrg().head(), torch.randn(1, CHANNELS, 3, 4)
    assert isinstance(head, TdrgHead)
    positions = x[0].flatten(1).T  # [T, C]
    structure = head.encoder[0](head.project(positions)[None])[0]  # [T, D]
    structural = head.structural(structure.max(dim=0).values)
    masks = torch.sigmoid(positions @ head.activation.weight.T).T  # [N, T]
    nodes = []
    for mask in masks:
        own = sum(m * head.nodes.project(position) for m, position in zip(mask, positions, strict=True))
        guided = head.guide(sum(m * one for m, one in zip(mask, structure, strict=True)))
        nodes.append(torch.cat((own, guided)))
    adjacency = literal_dynamic_graph(head.joint_correlation, nodes, structure.mean(dim=0))
    for label, (node, row) in enumerate(zip(nodes, adjacency, strict=True)):
        taken = sum(a * head.relate(other) for a, other in zip(row, nodes, strict=True))
        related = node + torch.nn.functional.leaky_relu(taken, 0.2)
        semantic = head.semantic.weight[label] @ related + head.semantic.bias[label]
        expected = 0.7 * structural[label] + 0.3 * semantic
        torch.testing.assert_close(head(x)[0, label], expected, atol=1e-4, rtol=1e-4)


def test_tdrg_answers_four_times_in_training() -> None:
    head, x = TestTdrg().head(), torch.randn(2, CHANNELS, 5, 5)
    assert isinstance(head, TdrgHead)
    expected, targets = head(x), torch.randint(0, 2, (2, LABELS))
    assert head.training_targets(targets) is targets
    fused, structural, semantic, maps = head.train()(x).chunk(4)
    assert torch.equal(head.training_targets(targets), torch.cat([targets] * 4))
    torch.testing.assert_close(fused, expected)
    torch.testing.assert_close(fused, 0.7 * structural + 0.3 * semantic)
    two_highest = head.activation(x.flatten(2).transpose(1, 2)).topk(2, dim=1).values  # 5 % of 25, rounded up
    torch.testing.assert_close(maps, two_highest.mean(dim=1))
    semantic.sum().backward()  # the guidance passes no gradient to the transformer
    assert head.project.weight.grad is not None
    assert not head.project.weight.grad.any()
    assert head.guide.weight.grad is not None
    assert head.guide.weight.grad.any()


def test_where_nothing_is_seen_attention_is_even() -> None:
    torch.testing.assert_close(as_attention(torch.zeros(1, 2, 4)), torch.full((1, 2, 4), 0.25))


GRAPHS = [name for name in heads.list_heads() if heads.preset(name).takes_cooccurrence]


@pytest.mark.parametrize("name", GRAPHS)
def test_statistics_change_the_logits_and_are_in_the_state_dict(name: str) -> None:
    options = small_options(name)
    x = torch.randn(2, CHANNELS, 3, 3)

    def make(cooccurrence: Tensor | None) -> heads.Head:
        torch.manual_seed(0)
        given = {**options, "cooccurrence": cooccurrence}
        return heads.create(name, in_features=CHANNELS, labels=LABELS, **given).eval()

    told, untold = make(options["cooccurrence"]), make(None)
    assert not torch.allclose(told(x), untold(x))
    untold.load_state_dict(told.state_dict())  # a saved model needs no table
    assert torch.equal(told(x), untold(x))


@pytest.mark.parametrize("name", GRAPHS)
def test_what_does_not_fit_is_told(name: str) -> None:
    options = small_options(name)
    with pytest.raises(LabelwiseError, match=r"cooccurrence must be \[13, 13\], not \[12, 13\]"):
        heads.create(name, in_features=CHANNELS, labels=LABELS, **{**options, "cooccurrence": torch.rand(12, 13)})
    damaged = {"word_vectors": (options["word_vectors"] / 0, "some of word_vectors are not finite")}
    for wrong in (torch.nan, -0.1, 1.1):
        given = options["cooccurrence"].index_fill(0, torch.tensor([3]), wrong)
        damaged["cooccurrence"] = given, "cooccurrence holds shares of images, from 0 to 1"
        for argument, (tensor, message) in damaged.items():
            with pytest.raises(LabelwiseError, match=message):
                heads.create(name, in_features=CHANNELS, labels=LABELS, **{**options, argument: tensor})
    head = heads.create(name, in_features=CHANNELS, labels=LABELS, **options)
    with pytest.raises(LabelwiseError, match="needs a head that takes new labels"):
        head.relabelled(["a"], ["b"], torch.randn(1, 10))
