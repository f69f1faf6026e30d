"""Which labels share a query when there are fewer queries than labels (ML-Decoder's group decoding, section 2.3.2).

The paper groups labels at random and mentions groups of similar labels as an alternative. Here are two: labels with
similar word vectors, and labels that occur in the same images.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from labelwise.core.errors import LabelwiseError
from labelwise.data.stream_table import AnyTable, with_labels_read
from labelwise.training.statistics import cooccurrence_vectors

Grouping = Literal["random", "words", "co-occurrence"]

_ITERATIONS = 8


def group_labels(
    kind: Grouping, groups: int | None, table: AnyTable, word_vectors: Tensor | None = None
) -> Tensor | None:
    """The slot of each label, [N], for a head's `label_slot`; None leaves the grouping to the head, at random.

    `groups` is the head's, `table` holds the training images, `word_vectors` [N, d] belong to its labels.
    """
    if kind == "random":
        return None
    if groups is None or groups >= len(table.labels):
        raise LabelwiseError(
            f"grouping by {kind} needs a head with fewer groups than the {len(table.labels)} labels",
            options={"head": "ml-decoder", "head.groups": 100},
        )
    if kind == "co-occurrence":
        return balanced_groups(cooccurrence_vectors(with_labels_read(table)), groups)
    if word_vectors is None:
        raise LabelwiseError("grouping by words needs word vectors of the labels", options={"model.words.source": ...})
    return balanced_groups(word_vectors, groups)


def balanced_groups(vectors: Tensor, groups: int) -> Tensor:
    """Similar vectors [N, d] into groups of g = ceil(N / K), the last one may be smaller: the slot of each row, [N].

    Slot s belongs to group s // g. Only directions count, not lengths. Nothing is random: the rows are bisected along
    their first principal component until each part is a group; then rows move to the group with the nearest mean, as
    long as it has room (k-means with groups of equal size).

    >>> balanced_groups(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.1], [0.5, 1.0]]), groups=2) // 2
    tensor([1, 0, 1, 0])
    """
    rows = F.normalize(vectors.detach().double(), dim=1)
    size = -(-len(rows) // min(groups, len(rows)))
    group = torch.empty(len(rows), dtype=torch.int64)
    group[_bisected(rows, size)] = torch.arange(len(rows)) // size
    for _ in range(_ITERATIONS):
        moved = _settled(rows, group)
        if torch.equal(moved, group):
            break
        group = moved
    slots = torch.empty(len(rows), dtype=torch.int64)
    slots[torch.argsort(group, stable=True)] = torch.arange(len(rows))
    return slots


def _bisected(rows: Tensor, size: int) -> Tensor:
    """An order of the rows [N] in which every `size` neighbours are similar."""
    done: list[Tensor] = []
    open_parts = [torch.arange(len(rows))]
    while open_parts:  # the part that comes first is always the last one of the list
        part = open_parts.pop()
        if len(part) <= size:
            done.append(part)
            continue
        ordered = part[torch.argsort(rows[part] @ _main_direction(rows[part]), descending=True, stable=True)]
        cut = -(-len(part) // size) // 2 * size
        open_parts += [ordered[cut:], ordered[:cut]]
    return torch.cat(done)


def _main_direction(rows: Tensor) -> Tensor:
    """The first principal component [d]; its largest entry is positive, so that it is the same everywhere."""
    direction: Tensor = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False).Vh[0]
    return direction * direction[direction.abs().argmax()].sign()


def _settled(rows: Tensor, group: Tensor) -> Tensor:
    """Each row's group [N] after all have chosen the nearest mean with room; rows that would lose most choose first."""
    room = torch.bincount(group)
    means = torch.zeros(len(room), rows.shape[1], dtype=rows.dtype).index_add_(0, group, rows) / room[:, None]
    similarity = rows @ F.normalize(means, dim=1).T  # [N, K]
    best = similarity.topk(min(2, len(room)), dim=1).values
    order = torch.argsort(best[:, 0] - best[:, -1], descending=True, stable=True)
    chosen, free, wishes = np.empty(len(rows), np.int64), room.numpy(), similarity.numpy()
    for row in order.tolist():
        choice = np.where(free > 0, wishes[row], -np.inf).argmax()
        chosen[row] = choice
        free[choice] -= 1
    return torch.from_numpy(chosen)
