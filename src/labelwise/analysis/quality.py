"""Labels that are probably wrong or missing: confident learning (Northcutt et al. 2021), by cleanlab."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelwise.core.arrays import Doubles, Targets
from labelwise.core.errors import missing_extra

_FEWEST = 5  # images with and without a label, to estimate its noise


@dataclass(frozen=True)
class LabelIssue:
    """A label of an image that is probably wrong or missing."""

    row: int
    column: int
    kind: Literal["missing", "wrong"]
    trust: float  # the model's probability that the given label is right: low is suspicious


def label_issues(scores: Doubles, targets: Targets) -> list[LabelIssue]:
    """Suspicious entries of targets [M, N], worst first.

    Each label is a binary problem of its own. cleanlab compares each score with the mean score of the images with or
    without the label, so the scores need not be calibrated. Unknown entries are skipped.

    Args:
        scores: A model's scores [M, N] on images that it was NOT trained on.
        targets: [M, N] in {1, 0, -1}.
    """
    issues = [
        LabelIssue(int(row), column, "wrong" if targets[row, column] == 1 else "missing", float(trust))
        for column in range(targets.shape[1])
        for row, trust in zip(*_of_one_label(scores[:, column], targets[:, column]), strict=True)
    ]
    return sorted(issues, key=lambda issue: issue.trust)


def _of_one_label(scores: Doubles, targets: Targets) -> tuple[NDArray[np.int64], Doubles]:
    """Rows [k] and the trust in them [k]."""
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        raise missing_extra("cleanlab", "quality") from None

    rows = np.flatnonzero(targets >= 0)
    given = targets[rows].astype(np.int64)
    if min(given.sum(), len(given) - given.sum()) < _FEWEST:
        return np.zeros(0, np.int64), np.zeros(0)
    probability = np.clip(scores[rows], 1e-6, 1 - 1e-6)
    both = np.stack([1 - probability, probability], axis=1)  # [m, 2]
    suspicious = np.asarray(find_label_issues(given, both, n_jobs=1), bool)
    trust = both[np.arange(len(given)), given]
    return rows[suspicious], trust[suspicious]
