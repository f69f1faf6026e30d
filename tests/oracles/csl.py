"""The class-aware selective loss as the paper states it, entry by entry in plain Python: sets, then three sums."""

from __future__ import annotations

import math
from collections.abc import Sequence


def literal_csl(
    logits: Sequence[Sequence[float]],
    targets: Sequence[Sequence[float]],
    *,
    gammas: tuple[float, float, float],  # of positives, negatives and un-annotated labels
    top_k: int,
    prior: Sequence[float] | None = None,
    eta: float = 0.5,
    whole_batch: bool = False,
) -> float:
    """The sum over all images. Un-annotated labels in Omega_L (likely in the image) or Omega_P (frequent) are ignored,
    all others are negatives with their own gamma."""
    gamma_pos, gamma_neg, gamma_unknown = gammas
    open_entries = [(i, c) for i, row in enumerate(targets) for c, target in enumerate(row) if target == -1]
    ranked = sorted(open_entries, key=lambda entry: -logits[entry[0]][entry[1]])
    if whole_batch:
        likely = set(ranked[: top_k * len(logits)])
    else:
        likely = {entry for i in range(len(logits)) for entry in [e for e in ranked if e[0] == i][:top_k]}
    total = 0.0
    for i, row in enumerate(targets):
        for c, target in enumerate(row):
            p = 1 / (1 + math.exp(-logits[i][c]))
            if target == 1:
                total -= (1 - p) ** gamma_pos * math.log(p)
            elif target == 0:
                total -= p**gamma_neg * math.log(1 - p)
            elif (i, c) not in likely and (prior is None or prior[c] <= eta):
                total -= p**gamma_unknown * math.log(1 - p)
    return total
