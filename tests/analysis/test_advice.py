"""Which labels fail, and what to do about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from labelwise.analysis.advice import advise
from labelwise.analysis.quality import LabelIssue

LABELS = ("cat", "dog", "cow", "kite")


def measured(predicted: np.ndarray, targets: np.ndarray) -> Any:
    return SimpleNamespace(labels=LABELS, predicted=predicted.astype(bool), targets=targets.astype(np.int8))


def scene() -> Any:
    """Cats are found; of 12 dogs, 9 are called cows; cows are given too often; 3 kites are all found."""
    targets, predicted = np.zeros((60, 4)), np.zeros((60, 4))
    targets[:20, 0] = predicted[:20, 0] = 1
    targets[20:32, 1] = 1
    predicted[20:23, 1] = 1
    predicted[23:32, 2] = 1
    targets[40:52, 2] = predicted[40:52, 2] = 1
    targets[57:, 3] = predicted[57:, 3] = 1
    targets[0, 1] = -1  # unknown: not wrong, whatever is said
    predicted[0, 1] = 1
    return measured(predicted, targets)


def test_a_label_fails_if_enough_images_say_so() -> None:
    advice = advise(scene(), None, None)
    assert [(one.label, one.found, one.images, one.predicted, one.instead) for one in advice.fails] == [
        ("dog", 3, 12, 3, "cow")
    ]
    assert [one.label for one in advice.weakest] == ["dog", "cow", "cat"]
    assert [one.measured for one in advice.unjudged] == [("kite", 3)]
    assert advice.exact == 51 / 60
    assert advice.doubtful is None
    assert advice.verdict.startswith("1 label of 3 that can be judged: ")


def test_more_images_are_asked_for_where_there_are_few() -> None:
    few = advise(scene(), {"cat": 500, "dog": 40, "cow": 300, "kite": 5}, ())
    assert [one.rarity for one in few.collect] == [("kite", 5), ("dog", 40)]
    many = advise(scene(), {"cat": 500, "dog": 4000, "cow": 300, "kite": 5}, ())
    assert [one.label for one in many.collect] == ["kite"]  # dogs have images enough: something else is wrong


def test_doubtful_labels_are_counted() -> None:
    issues = [LabelIssue(1, 1, "missing", 0.1), LabelIssue(2, 1, "wrong", 0.2), LabelIssue(3, 0, "wrong", 0.3)]
    assert advise(scene(), None, issues).doubtful == [("dog", 1, 1), ("cat", 0, 1)]


def test_the_verdict_in_words() -> None:
    cats, both, none = (columns(scene(), *kept) for kept in ((0, 3), (0, 2), (3,)))
    assert advise(cats, None, None).verdict == "None: the only label that can be judged has an F1 of 50 or more."
    assert advise(both, None, None).verdict == "None: all 2 labels that can be judged have an F1 of 50 or more."
    assert advise(none, None, None).verdict == ""


def columns(run: Any, *kept: int) -> Any:
    labels = [LABELS[n] for n in kept]
    return SimpleNamespace(labels=labels, predicted=run.predicted[:, kept], targets=run.targets[:, kept])
