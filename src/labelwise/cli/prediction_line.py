"""What the terminal says about a picture: its labels, and those that came close."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labelwise.prediction import Prediction

_NEAR = 0.6  # of its threshold: a label that comes this close is shown as a near miss
_NEAR_SHOWN = 3
_TINY = 1e-30  # a score of 0 is the furthest away


def describe(prediction: Prediction, labels: dict[str, float], *, near_misses: bool, width: int = 0) -> str:
    """`photo.jpg   dog 0.98   person 0.91   (sofa 0.34, below its threshold 0.52)`"""
    said = [f"{label} {score:.2f}" for label, score in labels.items()] or ["no label"]
    if near_misses:
        said += _near_misses(prediction)
    return "   ".join([str(prediction.image).ljust(width), *said])


def _near_misses(prediction: Prediction) -> list[str]:
    thresholds, named = prediction.thresholds, set(prediction.labels)
    below = [(label, score) for label, score in prediction.all_scores.items() if label not in named]
    near = [(label, score) for label, score in below if score >= _NEAR * thresholds[label]][:_NEAR_SHOWN]
    if not named:  # say at least what came nearest
        near = near or sorted(below, key=lambda entry: thresholds[entry[0]] / max(entry[1], _TINY))[:1]
    texts = [_both(score, thresholds[label]) for label, score in near]
    if len(near) == 1:
        return [f"({near[0][0]} {texts[0][0]}, below its threshold {texts[0][1]})"]
    several = ", ".join(f"{label} {score} < {limit}" for (label, _), (score, limit) in zip(near, texts, strict=True))
    return [f"(below their thresholds: {several})"] if near else []


def _both(score: float, threshold: float) -> tuple[str, str]:
    """With as many digits as it takes to see that they differ.

    >>> _both(0.34, 0.52), _both(0.5196, 0.5204)
    (('0.34', '0.52'), ('0.5196', '0.5204'))
    """
    digits = 2 if f"{score:.2f}" != f"{threshold:.2f}" else 4
    return f"{score:.{digits}f}", f"{threshold:.{digits}f}"
