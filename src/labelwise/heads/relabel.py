"""Other labels for a trained head: word heads take any list of them (ML-Decoder section 2.3.3 and appendix B)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from labelwise.heads.config import HeadConfig
from labelwise.heads.conse import ConseHead
from labelwise.heads.fast0tag import Fast0TagHead
from labelwise.heads.queries import label_slots
from labelwise.heads.query_head import QueryHead
from labelwise.heads.registry import Head, build
from labelwise.heads.words import require_word_head


def regroup(
    before: Sequence[str], slots: Sequence[int], after: Sequence[str], group_size: int, seed: int | None
) -> list[int]:
    """Slots for the labels `after`, where `before` had `slots`.

    Labels of one group influence each other, so a group whose labels are all still wanted stays as it is. The others
    are dealt into further groups by `seed`, in the order of their names: the order of the list never matters.

    >>> regroup(["a", "b", "c", "d"], [0, 1, 2, 3], ["y", "d", "x", "c"], group_size=2, seed=None)
    [3, 1, 2, 0]
    """
    members = defaultdict(list)
    for label, slot in zip(before, slots, strict=True):
        members[slot // group_size].append((label, slot % group_size))
    wanted = set(after)
    kept = [group for _, group in sorted(members.items()) if wanted.issuperset(label for label, _ in group)]
    place = {label: number * group_size + at for number, group in enumerate(kept) for label, at in group}
    others = sorted(wanted - place.keys())
    dealt = label_slots(len(others), seed).tolist()
    place |= {label: len(kept) * group_size + slot for label, slot in zip(others, dealt, strict=True)}
    return [place[label] for label in after]


WordHead = QueryHead | ConseHead | Fast0TagHead


def relabelled(head: WordHead, word_vectors: Tensor, slots: Sequence[int] | None = None) -> Head:
    """A head for the labels of `word_vectors` [N, d_w], with the weights of `head` (the same memory, no copy).

    `slots` say where the labels sit in groups of the head's own size; a head with one query per label has none.
    """
    require_word_head(head.config, "a change of labels")
    assert head.word_vectors is not None
    config: HeadConfig = head.config
    buffers = {"word_vectors": word_vectors.to(head.word_vectors)}
    if isinstance(head, QueryHead):
        groups = len(word_vectors) if slots is None else max(slots) // head.group_size + 1
        grouping = {"groups": groups, "group_size": head.group_size}
        config = head.config.model_copy(update={"queries": head.config.queries.model_copy(update=grouping)})
        if slots is not None:
            buffers["label_slot"] = torch.tensor(slots, device=head.word_vectors.device)
    # On the meta device nothing is allocated or drawn at random: a new list of labels costs milliseconds.
    with torch.device("meta"):
        other = build(config, head.in_features, len(word_vectors), word_vectors, buffers.get("label_slot"))
    other.load_state_dict({**head.state_dict(), **buffers}, assign=True)
    return other.train(head.training)
