"""The threshold rule `auto`: the best that can be expected on other images, from few positives or many.

The best F1 on a handful of validation positives says little: the threshold lands right below them, and on other images
the label is predicted everywhere. Here a label's curves of precision and recall are a mixture of what was observed and
of what its calibrated scores promise, the more of the former the more positives there are.

A threshold that is best for CF1, where all labels count the same, is not best for OF1, where all predictions do. CF1
alone would even reward labels that are predicted everywhere, as long as others are predicted nowhere: it is the
harmonic mean of the *mean* precision and the *mean* recall. So the thresholds are those with the best sum of both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labelwise.core.arrays import Doubles, Ints, Mask, Scores, Targets
from labelwise.evaluation.calibration import sigmoid

# benchmarks/thresholds.py compares the rule with others.
_POSITIVES_TO_TRUST = 80  # a label with as many has half its curve from them
_DRAWS = 20  # of images: a threshold lies in a gap between two scores, and which one is chance if images are few
_STEPS = 50
_MARGIN = 1.0  # in logits: how far a cut lies above or below all images


def auto_thresholds(scores: Scores, targets: Targets) -> Doubles:
    """Thresholds [N] from probabilities and targets [M, N], at least one of which is 1."""
    curves = Curves.of(_logit(scores.astype(np.float64)), targets)
    random = np.random.default_rng(0)
    draws = [np.bincount(random.integers(0, len(scores), len(scores)), minlength=len(scores)) for _ in range(_DRAWS)]
    thresholds: Doubles = sigmoid(np.mean([curves.best_cuts(draw) for draw in draws], axis=0))
    return thresholds


@dataclass(frozen=True)
class Curves:
    """What each label's cut points would give, one label after the other, each by falling logits: [E] entries in all.

    Entry e of a label cuts below it: the label is predicted for the images of its entries up to e. Its first entry is a
    cut above all images. Images far below any sensible cut have none.
    """

    logits: Doubles  # [E]
    rows: Ints  # [E], images; -1 for the cuts above all
    positive: Doubles  # [E], chance that the label applies
    inside: Mask  # [E], between equal scores, where no cut can be
    starts: Ints  # [N], where the labels begin
    chances: Doubles  # [M, N], `positive` of all images; 0 where the target is unknown

    @classmethod
    def of(cls, logits: Doubles, targets: Targets) -> Curves:
        observed = targets == 1
        positives = observed.sum(axis=0)  # [N]
        trust = positives / (positives + _POSITIVES_TO_TRUST)
        chances = trust * observed + (1 - trust) * sigmoid(logits + _offsets(logits, targets))
        chances *= targets >= 0
        parts: list[tuple[Doubles, Ints]] = []
        for label, expected in enumerate(chances.sum(axis=0)):
            known = np.flatnonzero(targets[:, label] >= 0)
            order = known[np.argsort(-logits[known, label], kind="stable")]
            order = order[: max(int(4 * expected), 4 * int(positives[label])) + 20]
            above = logits[order[0], label] + 2 * _MARGIN if len(order) else _MARGIN
            parts.append((np.append(above, logits[order, label]), np.append(-1, order)))
        rows = np.concatenate([part[1] for part in parts])
        ranked = np.concatenate([part[0] for part in parts])
        lengths = np.array([len(part[0]) for part in parts])
        label_of = np.repeat(np.arange(len(parts)), lengths)
        same = np.append((ranked[1:] == ranked[:-1]) & (label_of[1:] == label_of[:-1]), False)
        positive = np.where(rows < 0, 0.0, chances[rows, label_of])
        return cls(ranked, rows, positive, same, np.append(0, lengths.cumsum()[:-1]), chances)

    def best_cuts(self, weights: Ints) -> Doubles:
        """The logits [N] to cut at, if image m counts `weights[m]` times.

        CF1 and OF1 are functions of four sums over labels. Around the present sums both are nearly linear, which makes
        every label's choice its own; the sums follow the choices until nothing gets better.
        """
        counts = np.where(self.rows < 0, 0, weights[self.rows])
        correct, predicted = self._running(counts * self.positive), self._running(counts)
        totals = np.maximum(weights @ self.chances, 1e-9)  # [N]
        recall = correct / np.repeat(totals, self._lengths)
        precision = np.divide(correct, predicted, out=np.zeros_like(correct), where=predicted > 0)
        labels, everything = len(self.starts), float(totals.sum())

        def sums(cuts: Ints) -> Doubles:
            return np.array(
                [precision[cuts].mean(), recall[cuts].mean(), correct[cuts].sum(), float(predicted[cuts].sum())]
            )

        best = self._highest(2 * correct / (predicted + np.repeat(totals, self._lengths)))  # each label's F1
        now, best_value = sums(best), -1.0
        for _ in range(_STEPS):
            mean_precision, mean_recall, hits, given = now
            both = mean_precision + mean_recall + 1e-9
            cuts = self._highest(
                ((mean_recall / both) ** 2 * precision + (mean_precision / both) ** 2 * recall) / labels
                + (correct - hits / (given + everything) * predicted) / (given + everything)
            )
            found = sums(cuts)
            value = _cf1_and_of1(found, everything)
            if value > best_value:
                best, best_value = cuts, value
            now = now + 0.3 * (found - now)  # a whole step may swing between two choices for ever
        return self._middle(best, counts)

    def _middle(self, cuts: Ints, counts: Ints) -> Doubles:
        """The middle [N] of the gap between each cut's entry and the next one that counts."""
        entries = np.where(counts > 0, np.arange(len(counts)), len(counts))
        next_entry = np.append(np.minimum.accumulate(entries[::-1])[::-1][1:], len(counts))[cuts]  # [N]
        ends = self.starts + self._lengths
        below = np.append(self.logits, 0.0)[next_entry]
        below = np.where(next_entry < ends, below, self.logits[ends - 1] - 2 * _MARGIN)
        middle: Doubles = (self.logits[cuts] + below) / 2
        return middle

    @property
    def _lengths(self) -> Ints:
        return np.diff(np.append(self.starts, len(self.logits)))

    def _running(self, values: Doubles | Ints) -> Doubles:
        """Sums up to each entry of its label."""
        total = np.append(0.0, values.cumsum())
        running: Doubles = total[1:] - np.repeat(total[self.starts], self._lengths)
        return running

    def _highest(self, values: Doubles) -> Ints:
        """The entry [N] with the highest value of each label; of equals the first, which has the fewest predictions."""
        values = np.where(self.inside, -np.inf, values)
        highest = np.repeat(np.maximum.reduceat(values, self.starts), self._lengths)
        entries = np.where(values == highest, np.arange(len(values)), len(values))
        first: Ints = np.minimum.reduceat(entries, self.starts)
        return first


def _cf1_and_of1(sums: Doubles, everything: float) -> float:
    precision, recall, hits, given = map(float, sums)
    return 2 * precision * recall / (precision + recall + 1e-9) + 2 * hits / (given + everything)


def _offsets(logits: Doubles, targets: Targets) -> Doubles:
    """What to add to each label's logits [M, N] so that they are as high as its targets say: logistic regression with a
    standard normal prior, by Newton's method."""
    known, positive = targets >= 0, targets == 1
    offsets = np.zeros(logits.shape[1])
    for _ in range(30):
        p = sigmoid(logits + offsets)
        slope = ((p - positive) * known).sum(axis=0) + offsets
        curvature = (p * (1 - p) * known).sum(axis=0) + 1
        offsets -= np.clip(slope / curvature, -2, 2)  # a whole step may go too far where sigmoids are flat
    return offsets


def _logit(scores: Doubles) -> Doubles:
    inside = np.clip(scores, 1e-6, 1 - 1e-6)
    result: Doubles = np.log(inside) - np.log1p(-inside)
    return result
