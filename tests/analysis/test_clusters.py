"""The tree against SciPy's, and the order of its leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.analysis.experts import average_linkage, leaf_order


@settings(max_examples=40, deadline=None)
@given(things=st.integers(2, 12), seed=st.integers(0, 1000))
def test_equals_scipys_average_linkage(things: int, seed: int) -> None:
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    points = np.random.default_rng(seed).random((things, 3))
    apart = np.abs(points[:, None] - points).sum(axis=-1)
    expected = hierarchy.linkage(apart[np.triu_indices(things, 1)], "average")
    found = np.array([merge[:3] for merge in average_linkage(apart)])
    np.testing.assert_allclose(found, expected[:, :3], atol=1e-9)


@given(things=st.integers(1, 12), seed=st.integers(0, 1000))
def test_every_cluster_stands_together(things: int, seed: int) -> None:
    points = np.random.default_rng(seed).random(things)
    merges = average_linkage(np.abs(points[:, None] - points))
    order = leaf_order(merges)
    assert sorted(order) == list(range(things))
    members = [{thing} for thing in range(things)]
    for merge in merges:
        members.append(members[merge.left] | members[merge.right])
        places = sorted(order.index(thing) for thing in members[-1])
        assert places == list(range(places[0], places[0] + len(places)))


def test_distances_are_left_as_they_were() -> None:
    apart = np.array([[0.0, 2.0], [2.0, 0.0]])
    average_linkage(apart)
    assert apart.tolist() == [[0, 2], [2, 0]]
