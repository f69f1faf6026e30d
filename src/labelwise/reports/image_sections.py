"""The sections with images: predictions with attention, mistakes and suspicious labels; and negative transfer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from labelwise.analysis.curves import Mistake
from labelwise.analysis.measured import MeasuredRun
from labelwise.analysis.quality import LabelIssue
from labelwise.analysis.transfer import Transfer
from labelwise.metrics.ranking import mean_over_labels
from labelwise.reports.charts import Whisker, difference_chart, signed
from labelwise.reports.html import Html, Section, interval, join, part, percent, tag
from labelwise.reports.overlay import data_uri, overlay, thumbnail
from labelwise.runtime.prediction import Prediction
from labelwise.runtime.tagger import Tagger

_PER_LABEL = 3  # suspicious images of one label; the list in the CSV is complete


def predictions_section(run: MeasuredRun, images: int, progress: bool = True) -> Section:
    """Some images, evenly spread over the table, with what the model predicts and where it looked."""
    rows = sorted({round(row) for row in np.linspace(0, len(run.table) - 1, min(images, len(run.table)))})
    tagger = Tagger(run.run.model())
    found = tagger.predict([run.table.images[row] for row in rows], on_bad_image="skip", progress=progress)
    cards = [_card(one, run.table.present(row)) for row, one in zip(rows, found, strict=True) if one.error is None]
    return Section(
        "Predictions",
        part("predictions", cards=cards),
        f"{len(cards)} images with the labels that {run.name} predicts. The small images show the attention for each "
        "predicted label.",
    )


def _card(prediction: Prediction, truth: Sequence[str]) -> dict[str, Any]:
    """One image for the template."""
    image = prediction.open_image()
    predicted = [
        {
            "label": label,
            "score": score,
            "right": label in truth,
            "uri": data_uri(overlay(image, prediction.attention(label), prediction.preprocessing), 200),
        }
        for label, score in zip(prediction.labels, prediction.scores, strict=True)
    ]
    return {
        "uri": data_uri(image),
        "name": prediction.name,
        "truth": list(truth),
        "missed": [label for label in truth if label not in prediction.labels],
        "wrong": sum(not one["right"] for one in predicted),
        "predicted": predicted,
    }


def mistakes_section(run: MeasuredRun, wrong: Sequence[Mistake], missed: Sequence[Mistake]) -> Section:
    parts = []
    for title, mistakes, empty in (
        ("False positives", wrong, "No false positives."),
        ("Misses", missed, "No misses."),
    ):
        cards = [
            _image_card(m.image, m.label, f"score {m.score:.3f}, threshold {m.threshold:.2f}", m.present)
            for m in mistakes
        ]
        parts += [tag("h3", title), _image_grid(cards) if cards else tag("p", empty, class_="muted")]
    return Section(
        "Worst mistakes",
        join(*parts),
        f"The mistakes of {run.name} that are furthest from their thresholds, at most {_PER_LABEL} per label. Some are "
        "errors of the model, some of the labels. The list is in mistakes.csv.",
    )


def _image_card(image: str, label: str, text: str, present: Sequence[str]) -> Html:
    return part("image_card", image=thumbnail(image), label=label, text=text, present=", ".join(present))


def _image_grid(cards: Sequence[Html]) -> Html:
    return tag("div", *cards, class_="images")


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
    """Labels that are probably wrong or missing, `most` images of each kind."""
    parts = []
    for kind, title in (("missing", "Probably missing"), ("wrong", "Probably wrong")):
        found = [issue for issue in issues if issue.kind == kind]
        parts.append(tag("h3", title, tag("small", f"{len(found):,} of {int((run.targets >= 0).sum()):,} labels")))
        cards = [_issue_card(run, issue) for issue in _mixed(found, most)]
        parts.append(_image_grid(cards) if cards else tag("p", "No suspicious labels.", class_="muted"))
    return Section(
        "Labels to check",
        join(*parts),
        f"Where {run.name} and the labels disagree most (confident learning, by cleanlab), on images that it was not "
        "trained on. These are suspicions: labels in which the model is weak have many. At most "
        f"{_PER_LABEL} images per label; the whole list is in label_issues.csv.",
    )


def _issue_card(run: MeasuredRun, issue: LabelIssue) -> Html:
    words = f"score {run.scores[issue.row, issue.column]:.3f}"
    return _image_card(
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
        note="Filled bars: significant. Hollow bars: not significant. Lines: 95% intervals.",
    )
    hurt = [run.labels[n] for n in found.hurt]
    verdict = (
        f"Negative transfer in {len(hurt)} of {len(run.labels)} labels: {', '.join(hurt)}."
        if hurt
        else f"No negative transfer: none of {len(run.labels)} labels is significantly worse than alone."
    )
    mean = (
        f"mAP of {run.name} minus the baseline: {signed(100 * found.mean.value)} points "
        f"({interval(found.mean.interval)}); the baseline has {percent(mean_over_labels(found.baseline))}."
    )
    return Section(
        "Negative transfer",
        join(tag("p", verdict), tag("p", mean), chart),
        "Whether labels suffer from being learned together. The baseline is one logistic regression per label on the "
        "average-pooled features of the same frozen backbone, fitted on the same "
        f"{found.training_images:,} training images, with its penalty chosen on a fifth of them; labels share nothing. "
        "A label has negative transfer if the joint model's AP is significantly lower (paired bootstrap, corrected for "
        "the number of labels).",
    )
