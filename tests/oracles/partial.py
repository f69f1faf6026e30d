"""Losses for partly labelled images, entry by entry in plain Python, as their authors state them; -1 is unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def cross_entropy(p: float, t: float) -> float:
    return -t * math.log(p) - (1 - t) * math.log(1 - p)


def literal_em(logits: Matrix, targets: Matrix, pseudo: Matrix | None, alpha: float, beta: float) -> float:
    """The mean over images and labels: known labels, pseudo-labels, and what is to stay undecided."""
    total, count = 0.0, 0
    for i, row in enumerate(targets):
        for c, target in enumerate(row):
            p = sigma(logits[i][c])
            if target >= 0:
                total += cross_entropy(p, target)
            elif pseudo is not None and pseudo[i][c] >= 0:
                total += beta * cross_entropy(p, pseudo[i][c])
            else:
                total -= alpha * cross_entropy(p, p)  # the entropy
            count += 1
    return total / count


def literal_pseudo_negatives(scores: Matrix, pseudo: Matrix, share: float, rounds: int) -> list[list[float]]:
    """Label by label: sort the unknown images by their score and take the lowest ones that have no pseudo-label."""
    result = [list(row) for row in pseudo]
    for c in range(len(scores[0])):
        unknown = [i for i in range(len(scores)) if not math.isnan(scores[i][c])]
        free = sorted((i for i in unknown if pseudo[i][c] < 0), key=lambda i: scores[i][c])
        for i in free[: int(share * len(unknown) / rounds)]:
            result[i][c] = scores[i][c]
    return result


def literal_role(logits: Matrix, targets: Matrix, estimates: Matrix, expected: float) -> tuple[float, float]:
    """The two halves: the model given the estimates, the estimates given the model."""

    def half(mine: Matrix, other: Matrix) -> float:
        images, labels = len(mine), len(mine[0])
        known = across = positives = 0.0
        for i in range(images):
            for c in range(labels):
                p = sigma(mine[i][c])
                if targets[i][c] >= 0:
                    known += cross_entropy(p, targets[i][c])
                across += cross_entropy(p, sigma(other[i][c]))
                positives += p
        regulariser = ((positives / images - expected) / labels) ** 2
        return (known + across) / (images * labels) + regulariser

    return half(logits, estimates), half(estimates, logits)


def literal_gpr(
    logits: Matrix,
    targets: Matrix,
    *,
    w: float,
    b: float,
    mu: float,
    sigma_v: float,
    q: tuple[float, float],
    pseudo_weights: tuple[float, float],
    expected: float,
    regularisation: float,
) -> float:
    """The mean over images and labels, for one epoch's k (w, b) and v (mu, sigma_v)."""
    images, labels = len(logits), len(logits[0])
    total = positives = 0.0
    for i in range(images):
        for c in range(labels):
            p, target = sigma(logits[i][c]), targets[i][c]
            k = sigma(w * p + b)
            v = math.exp(-0.5 * ((p - mu) / sigma_v) ** 2)
            positives += p
            if target == -1:
                total += v * (k * (1 - p ** q[0]) / q[0] + (1 - k) * (1 - (1 - p) ** q[1]) / q[1])
            elif 0.5 <= target < 1:
                low, high = pseudo_weights
                total += min(max(1 - v, low), high) * cross_entropy(p, target)
            elif 0 < target < 0.5:
                total += v * cross_entropy(p, target)
            else:
                total += cross_entropy(p, target)
    return total / (images * labels) + regularisation * ((positives / images - expected) / labels) ** 2
