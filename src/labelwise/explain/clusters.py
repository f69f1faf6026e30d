"""Average-linkage clustering (UPGMA) of a few dozen things: who is like whom, as a tree."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


class Merge(NamedTuple):
    """Two clusters become one. Things are numbered 0 to n-1; merge i makes cluster n + i."""

    left: int
    right: int
    distance: float  # mean over all pairs of things, one from each side


def average_linkage(distances: Doubles) -> list[Merge]:
    """The n - 1 merges of n things from their distances [n, n], nearest first.

    >>> average_linkage(np.array([[0, 1, 5], [1, 0, 7], [5, 7, 0]], float))
    [Merge(left=0, right=1, distance=1.0), Merge(left=2, right=3, distance=6.0)]
    """
    between = np.array(distances, np.float64)
    np.fill_diagonal(between, np.inf)
    cluster, size = list(range(len(between))), np.ones(len(between))
    merges = []
    for number in range(len(between) - 1):
        a, b = sorted(np.unravel_index(between.argmin(), between.shape))
        left, right = sorted((cluster[a], cluster[b]))
        merges.append(Merge(left, right, float(between[a, b])))
        joined = (size[a] * between[a] + size[b] * between[b]) / (size[a] + size[b])
        between[a], between[:, a] = joined, joined
        between[a, a] = np.inf
        between[b], between[:, b] = np.inf, np.inf  # b lives on in a
        cluster[a], size[a] = len(distances) + number, size[a] + size[b]
    return merges


def leaf_order(merges: list[Merge]) -> list[int]:
    """The things in an order in which every cluster stands together: how to arrange rows beside the tree.

    >>> leaf_order([Merge(0, 3, 1.0), Merge(1, 4, 2.0), Merge(2, 5, 3.0)])
    [2, 1, 0, 3]
    """
    things = len(merges) + 1
    members: list[list[int]] = [[thing] for thing in range(things)]
    for merge in merges:
        members.append(members[merge.left] + members[merge.right])
    return members[-1]
