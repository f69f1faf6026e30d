from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from labelwise.core.errors import LabelwiseError
from labelwise.data.table import LabelTable
from labelwise.training.grouping import balanced_groups, group_labels
from labelwise.training.statistics import cooccurrence, cooccurrence_vectors


def parts(slots: Tensor, size: int) -> set[frozenset[int]]:
    groups: dict[int, set[int]] = {}
    for label, slot in enumerate(slots.tolist()):
        groups.setdefault(slot // size, set()).add(label)
    return {frozenset(group) for group in groups.values()}


@settings(deadline=None)
@given(labels=st.integers(1, 60), groups=st.integers(1, 70), seed=st.integers(0, 1000))
def test_every_group_is_full_but_the_last(labels: int, groups: int, seed: int) -> None:
    vectors = torch.randn(labels, 5, generator=torch.Generator().manual_seed(seed))
    slots = balanced_groups(vectors, groups)
    assert sorted(slots.tolist()) == list(range(labels))  # so groups fill up one after the other
    assert torch.equal(slots, balanced_groups(vectors * torch.rand(labels, 1).add(0.1), groups))  # length is no matter


@settings(deadline=None)
@given(seed=st.integers(0, 1000), labels=st.integers(4, 40))
def test_the_order_of_the_labels_does_not_matter(seed: int, labels: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(labels, 6, generator=generator)
    order = torch.randperm(labels, generator=generator)
    size = -(-labels // 4)
    shuffled = parts(balanced_groups(vectors[order], 4), size)
    assert {frozenset(order[list(group)].tolist()) for group in shuffled} == parts(balanced_groups(vectors, 4), size)


@pytest.mark.parametrize(("clusters", "size"), [(4, 4), (5, 4), (16, 7), (100, 30)])
def test_groups_that_are_there_are_found(clusters: int, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(clusters, 200, generator=generator)
    home = torch.randperm(clusters * size, generator=generator) % clusters
    vectors = centres[home] + 0.01 * torch.randn(clusters * size, 200, generator=generator)
    expected = {frozenset((home == k).nonzero()[:, 0].tolist()) for k in range(clusters)}
    assert parts(balanced_groups(vectors, clusters), size) == expected


def table_of(targets: np.ndarray) -> LabelTable:
    return LabelTable.from_dense(
        [f"{i}.jpg" for i in range(len(targets))], targets, [f"{i}" for i in range(targets.shape[1])]
    )


@pytest.mark.parametrize("fill", [0, -1])
def test_cooccurrence_counts_known_entries_alone(fill: int) -> None:
    """Image by image, pair by pair; some labels never occur, some pairs are never known."""
    random = np.random.default_rng(1)
    targets = random.choice([1, 0, -1], (50, 7), p=[0.3, 0.3, 0.4])
    targets[:, 3] = random.choice([0, -1], 50)
    rows = [{label: int(value) for label, value in enumerate(row) if value != fill} for row in targets]
    table = LabelTable.from_rows([f"{i}.jpg" for i in range(50)], rows, list("abcdefg"), fill=fill)
    found = cooccurrence(table)
    for i, j in np.ndindex(7, 7):
        told = [row[j] for row in targets.tolist() if row[i] == 1 and row[j] != -1]
        assert found[i, j] == pytest.approx(told.count(1) / len(told) if told else 0)


def test_products_are_the_shares_of_common_images() -> None:
    targets = np.random.default_rng(0).choice([1, 0, -1], (300, 40), p=[0.2, 0.7, 0.1])
    vectors = cooccurrence_vectors(table_of(targets))
    present = (targets == 1).astype(float)
    counts = present.sum(axis=0)
    expected = present.T @ present / np.sqrt(counts[:, None] * counts)
    np.testing.assert_allclose(vectors @ vectors.T, expected, atol=1e-5)


def test_labels_of_one_scene_come_together() -> None:
    """More labels than dimensions: 30 scenes of 8 labels, each photo shows some of one scene; 2 labels are nowhere."""
    rng = np.random.default_rng(0)
    scene = rng.permutation(240) % 30
    targets = np.zeros((3000, 242), np.int8)
    for row in targets:
        members = np.flatnonzero(scene == rng.integers(30))
        row[rng.choice(members, 5, replace=False)] = 1
    found = parts(balanced_groups(cooccurrence_vectors(table_of(targets)), 31), 8)
    whole = {frozenset(np.flatnonzero(scene == k).tolist()) for k in range(30)}
    assert len(found & whole) >= 25  # the two without photos break up a few; of a random deal none would be right


def test_what_cannot_be_grouped_is_named() -> None:
    table = table_of(np.eye(6, dtype=np.int8))
    assert group_labels("random", None, table) is None
    with pytest.raises(LabelwiseError, match="fewer groups than the 6 labels"):
        group_labels("co-occurrence", 6, table)
    with pytest.raises(LabelwiseError, match=r"model\.words\.source="):
        group_labels("words", 2, table)
