"""Hidden labels: how many stay, that they stay what they are, and that test images keep all of theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from labelwise.core.errors import LabelwiseError
from labelwise.data.hiding import hide
from labelwise.data.table import LabelTable

TARGETS = hnp.arrays(np.int8, st.tuples(st.integers(1, 8), st.integers(1, 6)), elements=st.integers(-1, 1))


def table_of(targets: np.ndarray, splits: list[str] | None = None) -> LabelTable:
    images, labels = [f"{row}.jpg" for row in range(len(targets))], [f"label {c}" for c in range(targets.shape[1])]
    return LabelTable.from_dense(images, targets, labels, splits=splits)


@given(targets=TARGETS, keep=st.sampled_from(["one-positive", 0.3, "1"]), seed=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_what_is_left_is_true(targets: np.ndarray, keep: Any, seed: int) -> None:
    table = table_of(targets)
    left = hide(table, keep, seed=seed).targets()
    assert ((left == targets) | (left == -1)).all()
    assert (left == hide(table, keep, seed=seed).targets()).all()
    if keep == "1":
        assert (left == targets).all()
    if keep == "one-positive":
        assert ((left == 1).sum(axis=1) == (targets == 1).any(axis=1)).all()
        assert not (left == 0).any()


def test_a_share_of_present_and_absent_labels_alike_and_every_positive_as_likely_as_the_others() -> None:
    rng = np.random.default_rng(7)
    targets = (rng.random((4000, 10)) < 0.3).astype(np.int8)
    left = hide(table_of(targets), 0.1).targets()
    for value in (0, 1):
        assert (left[targets == value] == value).mean() == pytest.approx(0.1, abs=0.01)
    two = np.zeros((4000, 5), np.int8)
    two[:, [1, 4]] = 1
    assert (hide(table_of(two), "one-positive").targets() == 1).mean(axis=0) == pytest.approx(
        [0, 0.5, 0, 0, 0.5], abs=0.03
    )


def test_test_images_keep_their_labels_unless_asked() -> None:
    table = table_of(np.ones((4, 3), np.int8), ["train", "val", "test", ""])
    hidden = (hide(table, "one-positive").targets() == -1).any(axis=1).tolist()
    assert hidden == [True, True, False, True]
    assert (hide(table, "one-positive", split="val").targets() == -1).any(axis=1).tolist() == [
        False,
        True,
        False,
        False,
    ]
    assert (hide(table, "one-positive", split="all").targets() == -1).any(axis=1).all()


@pytest.mark.parametrize("keep", ["half", "0", 1.5, "nan"])
def test_nonsense_is_refused(keep: Any) -> None:
    with pytest.raises(LabelwiseError, match=r"cannot keep .*: write one-positive, or a share such as 0.1"):
        hide(table_of(np.ones((1, 1), np.int8)), keep)
