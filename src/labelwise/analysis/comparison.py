"""Runs compared with a reference run: which labels, and pairs of labels, improve, and what is significant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from labelwise.analysis.measured import MeasuredRun
from labelwise.core.arrays import Doubles, Scores, Targets
from labelwise.core.errors import LabelwiseError
from labelwise.data.labels import unknown_label
from labelwise.evaluation import Difference, benjamini_hochberg, paired_difference
from labelwise.evaluation.bootstrap import Draws


@dataclass(frozen=True)
class Comparison:
    """One run minus the reference; fractions."""

    run: MeasuredRun
    reference: MeasuredRun
    metrics: dict[str, Difference]  # mAP, CF1, OF1
    labels: list[Difference]  # N, of average precision
    significant: list[bool]  # N, of the labels' differences, by `benjamini_hochberg`

    @property
    def better(self) -> list[int]:
        return [n for n, difference in enumerate(self.labels) if difference.value > 0]

    @property
    def worse(self) -> list[int]:
        return [n for n, difference in enumerate(self.labels) if difference.value < 0]

    def significant_of(self, labels: Sequence[int]) -> list[int]:
        """Those of `labels` whose difference is significant."""
        return [n for n in labels if self.significant[n]]

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.run.name,
            "reference": self.reference.name,
            "metrics": {name: difference_as_dict(difference) for name, difference in self.metrics.items()},
            "labels_better": len(self.better),
            "labels_significantly_better": len(self.significant_of(self.better)),
            "labels_worse": len(self.worse),
            "labels_significantly_worse": len(self.significant_of(self.worse)),
            "pairs_improved": improved_pairs(len(self.better)),
            "pairs_significantly_improved": improved_pairs(len(self.significant_of(self.better))),
            "labels": difference_rows(self.run.labels, self.labels, self.significant),
        }


def compare(run: MeasuredRun, reference: MeasuredRun) -> Comparison:
    """Compare two runs that were measured on the same images and labels, with the same samples."""
    ours, theirs = run.evaluation.draws, reference.evaluation.draws
    if ours is None or theirs is None:
        raise LabelwiseError("a comparison needs samples", options={"bootstrap": 1000})
    gaps = run.average_precision - reference.average_precision
    labels, significant = label_differences(gaps, ours, theirs)
    metrics = {
        name: paired_difference(_metric(run, name) - _metric(reference, name), ours.metrics[name], theirs.metrics[name])
        for name in ("mAP", "CF1", "OF1")
    }
    return Comparison(run, reference, metrics, labels, significant)


def label_differences(gaps: Doubles, ours: Draws, theirs: Draws) -> tuple[list[Difference], list[bool]]:
    """The differences `gaps` [N] of average precision with their intervals, and which of them are significant."""
    samples = zip(gaps.tolist(), ours.average_precision, theirs.average_precision, strict=True)
    differences = [paired_difference(gap, a, b) for gap, a, b in samples]
    return differences, benjamini_hochberg(np.array([difference.p for difference in differences])).tolist()


def difference_rows(
    labels: Sequence[str], differences: Sequence[Difference], significant: Sequence[bool]
) -> list[dict[str, Any]]:
    """A row per label, in percent."""
    rows = zip(labels, differences, significant, strict=True)
    return [{"label": label, **difference_as_dict(d), "significant": found} for label, d, found in rows]


def improved_pairs(better: int) -> int:
    """Pairs of labels of which both are better: k (k - 1) / 2 for k better labels. HSQ section 4.3 counts this way: 15
    better labels of 20, and "105 pairs".

    >>> improved_pairs(15), improved_pairs(15) - improved_pairs(13)
    (105, 27)
    """
    return better * (better - 1) // 2


def best_in(runs: Sequence[MeasuredRun]) -> list[int]:
    """In how many labels each run has the highest average precision; a tie counts for each run."""
    precision = np.stack([run.average_precision for run in runs])  # [R, N]
    best = np.nanmax(np.where(np.isnan(precision), -1, precision), axis=0)
    return [int(((row == best) & ~np.isnan(row)).sum()) for row in precision]


def related_pairs(values: Scores, targets: Targets, most: int = 4) -> list[tuple[int, int]]:
    """The pairs of labels that a model confuses most; each label is in at most one pair.

    How much higher b scores where a is present and b is not than where neither is, in standard deviations of the
    latter, averaged over both directions.

    >>> targets = np.repeat(np.eye(4, dtype=np.int8), 3, axis=0)
    >>> looks_alike = np.array([[5, 4, 0, 0], [4, 5, 0, 0], [0, 0, 5, 1], [0, 0, 1, 5]])
    >>> noise = np.random.default_rng(0).normal(0, 0.1, (12, 4))
    >>> related_pairs(np.repeat(looks_alike, 3, axis=0) + noise, targets, most=1)
    [(0, 1)]
    """
    confusion = _confusion(values.astype(np.float64), targets)
    ranked = sorted(combinations(range(targets.shape[1]), 2), key=lambda pair: -confusion[pair])
    found: list[tuple[int, int]] = []
    taken: set[int] = set()
    for pair in ranked:
        if len(found) < most and confusion[pair] > 0 and not taken.intersection(pair):
            found.append(pair)
            taken.update(pair)
    return found


def _confusion(values: Doubles, targets: Targets) -> Doubles:
    """How much each two labels are confused, [N, N], symmetric; 0 with too few images."""
    present, absent = (targets == 1).astype(np.float64), (targets == 0).astype(np.float64)

    def mean(where_a: Doubles, what: Doubles) -> tuple[Doubles, Doubles]:
        """Row a, column b: the mean of `what` of b over images where `where_a` of a holds and b is absent."""
        count = where_a.T @ absent
        with np.errstate(invalid="ignore", divide="ignore"):
            return where_a.T @ (absent * what) / count, count

    with_a, count = mean(present, values)
    neither, _ = mean(absent, values)
    squares, _ = mean(absent, values**2)
    spread = np.sqrt(np.maximum(squares - neither**2, 1e-12))
    one_way = np.where(count >= 3, (with_a - neither) / spread, 0.0)
    both: Doubles = np.nan_to_num((one_way + one_way.T) / 2)
    return both


def named_pairs(pairs: Sequence[str], labels: Sequence[str]) -> list[tuple[int, int]]:
    """Indices of pairs such as `cow,horse`.

    >>> named_pairs(["cow,horse"], ["cat", "cow", "horse"])
    [(1, 2)]
    """
    found = []
    for pair in pairs:
        names = [name.strip() for name in pair.split(",")]
        if len(names) != 2 or names[0] == names[1]:
            raise LabelwiseError(f"pair {pair!r}: name two labels with a comma between them, as in cow,horse")
        for name in names:
            if name not in labels:
                raise unknown_label(name, labels)
        found.append((labels.index(names[0]), labels.index(names[1])))
    return found


def difference_as_dict(difference: Difference) -> dict[str, Any]:
    """A difference as percentages; None if it is undefined."""
    undefined = np.isnan(difference.value) or np.isnan(difference.p)
    low, high = difference.interval.low, difference.interval.high
    return {
        "difference": None if undefined else 100 * difference.value,
        "interval": None if undefined else [100 * low, 100 * high],
        "p": None if undefined else difference.p,
    }


def _metric(run: MeasuredRun, name: str) -> float:
    scores = run.evaluation.scores
    return scores.mAP if name == "mAP" else float(getattr(scores.at_thresholds, name))
