"""Part 2 of a query head: K query vectors [K, D], and which of them answers for which label (`label_slots`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.core.errors import LabelwiseError
from labelwise.heads.config import QueriesConfig


def group_shape(labels: int, config: QueriesConfig) -> tuple[int, int]:
    """The number of queries K and the labels g that fit into each.

    >>> group_shape(301, QueriesConfig(groups=20)), group_shape(301, QueriesConfig(group_size=10))
    ((20, 16), (31, 10))
    """
    if config.group_size is None:
        groups = min(config.groups or labels, labels)
        return groups, -(-labels // groups)
    needed = -(-labels // config.group_size)
    groups = config.groups or needed
    if groups < needed:
        raise LabelwiseError(
            f"{groups} groups of {config.group_size} have no room for {labels} labels; set groups or group_size alone"
        )
    return groups if config.keep_groups else min(groups, labels), config.group_size


def label_slots(labels: int, seed: int | None) -> Tensor:
    """Assigns N labels to slots of the groups, [N]: slot s belongs to query s // g.

    >>> label_slots(4, seed=None)
    tensor([0, 1, 2, 3])
    >>> sorted(label_slots(4, seed=0).tolist())
    [0, 1, 2, 3]
    """
    if seed is None:
        return torch.arange(labels)
    return torch.randperm(labels, generator=torch.Generator().manual_seed(seed))


def regroup(
    before: Sequence[str], slots: Sequence[int], after: Sequence[str], group_size: int, seed: int | None
) -> list[int]:
    """Slots for the labels `after`, if `before` had `slots`.

    Labels of one group influence each other, so a group whose labels are all still wanted stays as it is. The other
    labels are assigned to further groups by `seed`, in the order of their names: the order of the list is irrelevant.

    >>> regroup(["a", "b", "c", "d"], [0, 1, 2, 3], ["y", "d", "x", "c"], group_size=2, seed=None)
    [3, 1, 2, 0]
    """
    members = defaultdict(list)
    for label, slot in zip(before, slots, strict=True):
        members[slot // group_size].append((label, slot % group_size))
    wanted = set(after)
    kept = [group for _, group in sorted(members.items()) if wanted.issuperset(label for label, _ in group)]
    slot_of = {label: number * group_size + at for number, group in enumerate(kept) for label, at in group}
    others = sorted(wanted - slot_of.keys())
    assigned = label_slots(len(others), seed).tolist()
    slot_of |= {label: len(kept) * group_size + slot for label, slot in zip(others, assigned, strict=True)}
    return [slot_of[label] for label in after]


def dealt_slots(groups: int, group_size: int) -> list[int]:
    """All slots, one of each group after the other: labels that take the first of them are spread over all groups.

    >>> dealt_slots(groups=3, group_size=2)
    [0, 2, 4, 1, 3, 5]
    """
    return [group * group_size + at for at in range(group_size) for group in range(groups)]


def refill(
    before: Sequence[str], slots: Sequence[int], after: Sequence[str], dealt: Sequence[int], seed: int | None
) -> list[int]:
    """Slots for the labels `after` in the groups that the training had (`keep_groups`): labels of `before` keep theirs,
    the others take the first free ones of `dealt`, by `seed`.

    >>> refill(["a", "b", "c"], [0, 3, 1], ["x", "b"], dealt_slots(2, 2), seed=None)
    [0, 3]
    """
    if len(after) > len(dealt):
        raise LabelwiseError(
            f"the groups have room for {len(dealt)} labels, not {len(after)}; train with a larger group_size"
        )
    slot_of = {label: slot for label, slot in zip(before, slots, strict=True) if label in set(after)}
    taken = set(slot_of.values())
    free = [slot for slot in dealt if slot not in taken]
    others = sorted(set(after) - slot_of.keys())
    slot_of |= {label: free[at] for label, at in zip(others, label_slots(len(others), seed).tolist(), strict=True)}
    return [slot_of[label] for label in after]


def words_by_slot(word_vectors: Tensor, slots: Tensor, total: int) -> Tensor:
    """Word vectors [N, d_w] in the order of the slots, zeros for empty slots: [K * g, d_w]."""
    return word_vectors.new_zeros(total, word_vectors.shape[1]).index_copy(0, slots, word_vectors)


class Queries(nn.Module):
    """Query vectors that are learnable, or random and fixed (ML-Decoder section 2.3.2)."""

    def __init__(self, number: int, dim: int, learnable: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(number, dim), requires_grad=learnable)

    def forward(self, words: Tensor | None) -> Tensor:
        return self.weight


class WordQueries(nn.Module):
    """A projection of word vectors. In groups, each query is the concatenation of its labels' projections (eq. 5)."""

    def __init__(self, word_dim: int, dim: int, group_size: int, relu: bool) -> None:
        super().__init__()
        self.dim = dim
        self.group_size = group_size
        self.relu = relu
        # D / g numbers for each label; if g does not divide D, the rest of the query is zero
        self.project = nn.Linear(word_dim, dim // group_size, bias=relu)  # W_a

    def forward(self, words: Tensor) -> Tensor:  # [K * g, d_w] -> [K, D]
        projected = self.project(words)
        if self.relu:
            projected = F.relu(projected)
        parts = projected.unflatten(0, (-1, self.group_size)).flatten(1)  # [K, g * (D // g)]
        return F.pad(parts, (0, self.dim - parts.shape[1]))


def create_queries(number: int, dim: int, group_size: int, config: QueriesConfig) -> Queries | WordQueries:
    if config.queries == "words":
        assert config.word_dim is not None
        return WordQueries(config.word_dim, dim, group_size, relu=config.word_projection == "relu")
    return Queries(number, dim, learnable=config.queries == "learnable")


def augmented(words: Tensor, config: QueriesConfig) -> Tensor:
    """Word vectors [N, d_w] with normal noise relative to their root mean square, and parts set to zero: new in each
    batch."""
    if config.query_noise:
        words = words + config.query_noise * _size(words) * torch.randn_like(words)
    if config.query_cutout:
        words = words * (torch.rand_like(words) >= config.query_cutout)
    return words


def random_words(words: Tensor, number: int) -> Tensor:
    """`number` vectors of normal noise with the root mean square of the word vectors: [number, d_w]."""
    return _size(words) * torch.randn(number, words.shape[1], dtype=words.dtype, device=words.device)


def _size(words: Tensor) -> Tensor:
    return words.square().mean().sqrt()
