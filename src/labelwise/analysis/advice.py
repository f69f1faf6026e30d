"""What people ask about a run: how good is it, which labels fail, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from labelwise.analysis.measured import MeasuredRun
from labelwise.analysis.quality import LabelIssue
from labelwise.core.errors import counted
from labelwise.data.inspection import FEW

_FAILS = 0.5  # F1: below it, there are more than two mistakes for each hit
_CONFUSED = 0.2  # share of a label's misses in which the same other label is given instead


@dataclass(frozen=True)
class LabelVerdict:
    """How one label does at its threshold.

    Attributes:
        label: Its name.
        images: Measured images that have it.
        found: How many of them the model found.
        predicted: Images that the model gave it to.
        training: Images that have it and were not measured; None if unknown.
        instead: What the model often gives to images in which it misses this label; "" if nothing stands out.
    """

    label: str
    images: int
    found: int
    predicted: int
    training: int | None
    instead: str

    @property
    def f1(self) -> float:
        return 2 * self.found / max(1, self.images + self.predicted)

    @property
    def measured(self) -> tuple[str, int]:
        """The label and how many measured images have it."""
        return self.label, self.images

    @property
    def rarity(self) -> tuple[str, int]:
        """The label and how many images it has to be learned from; if that is unknown, how many were measured."""
        return self.label, self.images if self.training is None else self.training

    @property
    def judged(self) -> bool:
        """Whether enough images have it for its numbers to mean something."""
        return self.images >= FEW


@dataclass(frozen=True)
class Advice:
    """The answers.

    Attributes:
        exact: Share of the images that get exactly the right labels.
        fails: Labels with enough images and an F1 below a half, worst first.
        weakest: The weakest labels with enough images, worst first, whether they fail or not.
        unjudged: Labels with too few images to judge.
        collect: Labels that need more images: those that cannot be judged, and those that fail and have fewer images
            than most labels. The rarest come first.
        doubtful: (label, probably missing, probably wrong) by label, most first; None if it was not looked for.
    """

    exact: float
    fails: list[LabelVerdict]
    weakest: list[LabelVerdict]
    unjudged: list[LabelVerdict]
    collect: list[LabelVerdict]
    doubtful: list[tuple[str, int, int]] | None

    @property
    def verdict(self) -> str:
        """How many labels fail; "" if none can be judged."""
        judged = len(self.weakest)
        if self.fails:
            return (
                f"{counted(len(self.fails), 'label')} of {judged} that can be judged: more than two mistakes for each "
                "hit (F1 below 50)."
            )
        which = (
            f"all {judged} labels that can be judged have" if judged > 1 else "the only label that can be judged has"
        )
        return f"None: {which} an F1 of 50 or more." if judged else ""


def advise(run: MeasuredRun, training: Mapping[str, int] | None, issues: Sequence[LabelIssue] | None) -> Advice:
    """What to tell about a run.

    Args:
        run: The run.
        training: Images per label that were not measured, if they are the run's own.
        issues: Its `label_issues`, if they were looked for.
    """
    verdicts = _verdicts(run, training)
    weakest = sorted((one for one in verdicts if one.judged), key=lambda one: one.f1)
    fails = [one for one in weakest if one.f1 < _FAILS]
    unjudged = [one for one in verdicts if not one.judged]
    usual = median(training.values()) if training else 0
    rare = [one for one in fails if one.training is not None and one.training <= usual]
    return Advice(
        exact=float(((run.predicted == (run.targets == 1)) | (run.targets < 0)).all(axis=1).mean()),
        fails=fails,
        weakest=weakest,
        unjudged=unjudged,
        collect=sorted([*unjudged, *rare], key=lambda one: one.rarity[1]),
        doubtful=None if issues is None else _doubtful(run, issues),
    )


def _verdicts(run: MeasuredRun, training: Mapping[str, int] | None) -> list[LabelVerdict]:
    present, given = run.targets == 1, run.predicted & (run.targets >= 0)
    misses = (present & ~given).astype(np.float32)  # [M, N]
    wrong = (given & ~present).astype(np.float32)
    verdicts = []
    for column, label in enumerate(run.labels):
        confused = misses[:, column] @ wrong  # [N]: misses in which another label is given wrongly
        most = int(confused.argmax())
        stands_out = confused[most] >= max(2, _CONFUSED * misses[:, column].sum())
        verdicts.append(
            LabelVerdict(
                label,
                images=int(present[:, column].sum()),
                found=int((present & given)[:, column].sum()),
                predicted=int(given[:, column].sum()),
                training=None if training is None else training.get(label, 0),
                instead=run.labels[most] if stands_out else "",
            )
        )
    return verdicts


def _doubtful(run: MeasuredRun, issues: Sequence[LabelIssue]) -> list[tuple[str, int, int]]:
    kinds = {kind: Counter(one.column for one in issues if one.kind == kind) for kind in ("missing", "wrong")}
    columns = Counter(one.column for one in issues)
    return [(run.labels[n], kinds["missing"][n], kinds["wrong"][n]) for n, _ in columns.most_common()]
