"""Labels that are probably wrong or missing: confident learning (Northcutt et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from labelwise.core.arrays import Doubles, Mask, Targets

_SLACK = 1e-6  # scores that are equal but for rounding
_FEWEST = 5  # images with and without a label, to estimate how sure a model is of it


@dataclass(frozen=True)
class LabelIssue:
    """A label of an image that is probably wrong or missing."""

    row: int
    column: int
    kind: Literal["missing", "wrong"]
    trust: float  # the model's probability that the given label is right: low is suspicious


def label_issues(scores: Doubles, targets: Targets) -> list[LabelIssue]:
    """Suspicious entries of targets [M, N], worst first. The entries are those of cleanlab.

    Each label is a binary problem of its own. A score is compared with the mean score of the images with or without
    the label, so the scores need not be calibrated. Unknown entries are skipped.

    Args:
        scores: A model's scores [M, N] on images that it was NOT trained on.
        targets: [M, N] in {1, 0, -1}.

    >>> label_issues(np.array([[0.9]] * 5 + [[0.1]] * 5 + [[0.9]]), np.array([[1]] * 5 + [[0]] * 6, np.int8))
    [LabelIssue(row=10, column=0, kind='missing', trust=0.1)]
    """
    present, absent = targets == 1, targets == 0
    # What the model is sure of: at least as much as, on average, in images that are labelled so.
    sure_present = scores >= _means(scores, present) - _SLACK
    sure_absent = scores <= _means(scores, absent) + _SLACK
    says_present = sure_present & (~sure_absent | (scores > 0.5))  # both, if the label is hard: the likelier one
    says_absent = sure_absent & ~says_present
    enough = np.minimum(present.sum(axis=0), absent.sum(axis=0)) >= _FEWEST  # [N]
    missing = _least_trusted(1 - scores, absent & enough, says_absent, says_present)
    wrong = _least_trusted(scores, present & enough, says_present, says_absent)
    issues = [
        LabelIssue(int(row), int(column), "wrong" if present[row, column] else "missing", round(float(trust), 12))
        for found, trusts in ((missing, 1 - scores), (wrong, scores))
        for (row, column), trust in zip(np.argwhere(found), trusts[found], strict=True)
    ]
    return sorted(issues, key=lambda issue: issue.trust)


def _least_trusted(trust: Doubles, given: Mask, agrees: Mask, contradicts: Mask) -> Mask:
    """The entries [M, N] of those `given` that are trusted least: as many as the model is sure to contradict, of those
    that it is sure about."""
    against, decided = (given & contradicts).sum(axis=0), (given & (contradicts | agrees)).sum(axis=0)  # [N]
    many = np.rint(given.sum(axis=0) * against / np.maximum(decided, 1))
    rank = np.where(given, trust, np.inf).argsort(axis=0, kind="stable").argsort(axis=0)
    least: Mask = given & (rank < many) & (trust < 0.5)
    return least


def _means(scores: Doubles, where: Mask) -> Doubles:
    """Mean scores [N] over some of the entries [M, N]; 0 without any."""
    means: Doubles = np.where(where, scores, 0).sum(axis=0) / np.maximum(where.sum(axis=0), 1)
    return means
