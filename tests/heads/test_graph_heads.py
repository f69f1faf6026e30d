"""Heads on graphs of the labels: the kit that all heads pass, and parity with a literal reading of their papers."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from head_kit import CHANNELS, LABELS, HeadKit, small_options
from labelwise import heads
from labelwise.core.errors import LabelwiseError
from labelwise.heads.ml_gcn import MlGcnHead


class TestMlGcn(HeadKit):
    name = "ml-gcn"
    options: ClassVar = small_options("ml-gcn")


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
    head = heads.create(name, in_features=CHANNELS, labels=LABELS, **options)
    with pytest.raises(LabelwiseError, match="needs a head that takes new labels"):
        head.relabelled(["a"], ["b"], torch.randn(1, 10))
