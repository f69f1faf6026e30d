"""The parts of a page that need looking at pictures: mistakes, doubtful labels; and negative transfer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from labelwise.analysis.curves import Mistake
from labelwise.analysis.measured import MeasuredRun
from labelwise.analysis.quality import LabelIssue
from labelwise.analysis.transfer import Transfer
from labelwise.metrics.ranking import mean_over_labels
from labelwise.reports.charts import Whisker, difference_chart, signed
from labelwise.reports.html import Html, Section, interval, join, percent, tag
from labelwise.reports.overlay import picture_card, picture_grid

_PER_LABEL = 3  # doubtful pictures of one label; the list in the CSV is complete


def mistakes_section(run: MeasuredRun, wrong: Sequence[Mistake], missed: Sequence[Mistake]) -> Section:
    parts = []
    for title, mistakes, empty in (
        ("Named, but not there", wrong, "It named nothing that is not there."),
        ("There, but not named", missed, "It missed nothing."),
    ):
        cards = [
            picture_card(m.image, m.label, f"score {m.score:.3f}, threshold {m.threshold:.2f}", m.present)
            for m in mistakes
        ]
        parts += [tag("h3", title), picture_grid(cards) if cards else tag("p", empty, class_="muted")]
    return Section(
        "Worst mistakes",
        join(*parts),
        f"Of {run.name}, the furthest on the wrong side of their thresholds first, at most 3 of one label. Some are "
        "the model's, some the labels'. The list is in mistakes.csv.",
    )


def mistake_rows(run: MeasuredRun, mistakes: Sequence[Mistake]) -> list[dict[str, Any]]:
    return [
        {
            "run": run.name,
            "image": m.image,
            "label": m.label,
            "mistake": m.kind,
            "score": f"{m.score:.6f}",
            "threshold": f"{m.threshold:.6f}",
            "labelled": "|".join(m.present),
        }
        for m in mistakes
    ]


def quality_section(run: MeasuredRun, issues: Sequence[LabelIssue], most: int) -> Section:
    """Labels that are probably wrong or missing, `most` pictures of each kind."""
    parts = []
    for kind, title in (("missing", "Probably missing"), ("wrong", "Probably not there")):
        found = [issue for issue in issues if issue.kind == kind]
        parts.append(tag("h3", title, tag("small", f"{len(found):,} of {int((run.targets >= 0).sum()):,} labels")))
        cards = [_issue_card(run, issue) for issue in _mixed(found, most)]
        parts.append(picture_grid(cards) if cards else tag("p", "Nothing suspicious.", class_="muted"))
    return Section(
        "Labels to check",
        join(*parts),
        f"Where {run.name} and the labels disagree most (confident learning, by cleanlab), judged on images that it "
        "was not trained on. Suspicions, not verdicts: a label that the model is weak in makes many. At most "
        f"{_PER_LABEL} pictures of one label; the whole list is in label_issues.csv.",
    )


def _issue_card(run: MeasuredRun, issue: LabelIssue) -> Html:
    words = f"score {run.scores[issue.row, issue.column]:.3f}"
    return picture_card(
        run.table.images[issue.row], run.labels[issue.column], words, tuple(run.table.present(issue.row))
    )


def _mixed(issues: Sequence[LabelIssue], most: int) -> list[LabelIssue]:
    """The first `most`, but not more than a few of one label."""
    taken: Counter[int] = Counter()
    kept: list[LabelIssue] = []
    for issue in issues:
        taken[issue.column] += 1
        if len(kept) < most and taken[issue.column] <= _PER_LABEL:
            kept.append(issue)
    return kept


def issue_rows(run: MeasuredRun, issues: Sequence[LabelIssue]) -> list[dict[str, Any]]:
    return [
        {
            "image": run.table.images[issue.row],
            "label": run.labels[issue.column],
            "given": "present" if issue.kind == "wrong" else "absent",
            "probably": issue.kind,
            "trust": f"{issue.trust:.6f}",
            "labelled": "|".join(run.table.present(issue.row)),
        }
        for issue in issues
    ]


def transfer_section(run: MeasuredRun, found: Transfer) -> Section:
    rows = [
        Whisker(label, 100 * d.value, 100 * d.interval.low, 100 * d.interval.high, significant)
        for label, d, significant in zip(run.labels, found.differences, found.significant, strict=True)
    ]
    chart = difference_chart(
        sorted(rows, key=lambda row: -row.value),
        title=f"{run.name} minus one model per label, in points of AP",
        note="Full bars: not luck. Lines: 95% of the samples.",
    )
    hurt = [run.labels[n] for n in found.hurt]
    verdict = (
        f"Negative transfer in {len(hurt)} of {len(run.labels)} labels: {', '.join(hurt)}."
        if hurt
        else f"No label of {len(run.labels)} is surely worse than alone: no negative transfer was found."
    )
    mean = (
        f"Over all labels {run.name} is {signed(100 * found.mean.value)} points of mAP from the baseline "
        f"({interval(found.mean.interval)}); the baseline has {percent(mean_over_labels(found.baseline))}."
    )
    return Section(
        "Negative transfer",
        join(tag("p", verdict), tag("p", mean), chart),
        "Does a label suffer from being learned together with others? The baseline is one logistic regression for "
        "each label on the same frozen backbone's average-pooled features, fitted on the same "
        f"{found.training_images:,} training images, its penalty chosen on a fifth of them: nothing is shared between "
        "labels. A label has negative transfer if the joint model's AP is lower and paired bootstrap, corrected for "
        "the number of labels, says that it is not luck.",
    )
