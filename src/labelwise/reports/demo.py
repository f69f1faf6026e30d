"""The page that `make demo` ends in: what was learned, by numbers and by pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from PIL import Image

from labelwise.reports.html import Html, Section, join, tag, write_report
from labelwise.reports.overlay import data_uri, overlay
from labelwise.reports.svg import bar_chart, line_chart
from labelwise.runtime.prediction import Prediction

# (key of `labelwise evaluate --json`, what it says)
_METRICS = (
    ("mAP", "mean over the labels of average precision: are pictures with the label ranked first?"),
    ("CF1", "precision and recall in one number, every label counting the same"),
    ("OF1", "the same over all decisions, frequent labels counting more"),
    ("CP", "mean over the labels: of what was called so, how much is right"),
    ("CR", "mean over the labels: of what is there, how much was found"),
)
_TIMES = "\N{MULTIPLICATION SIGN}"
_MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class DemoPicture:
    """A picture, what is in it, what the model said, and where it looked for each label it named."""

    image: Image.Image
    name: str
    truth: Sequence[str]
    predicted: Mapping[str, float]  # label -> score, best first
    overlays: Mapping[str, Image.Image] = field(default_factory=dict)  # label -> the picture with its attention map

    @classmethod
    def from_prediction(cls, prediction: Prediction, truth: Sequence[str]) -> Self:
        """With the overlays of all predicted labels; the model's head has to have attention."""
        picture = prediction.open_image()
        return cls(
            image=picture,
            name=Path(str(getattr(prediction.image, "filename", prediction.image))).name,
            truth=truth,
            predicted=dict(zip(prediction.labels, prediction.scores, strict=True)),
            overlays={
                label: overlay(picture, prediction.attention(label), prediction.preprocessing)
                for label in prediction.labels
            },
        )


def demo_report(
    folder_out: str | Path,
    runs: Mapping[str, Mapping[str, Any]],
    predictions: Sequence[DemoPicture],
    training_curves: Mapping[str, Sequence[Mapping[str, float]]],
    seconds: float,
) -> Path:
    """Write `report.html`.

    `runs`: name -> what `labelwise evaluate --json` gives on the test split; the first one made the `predictions`.
    `training_curves`: name -> a list of {epoch, loss, mAP}, the loss on training, the mAP on validation pictures.
    `seconds`: what the whole demo took.
    """
    first = next(iter(runs))
    sections = [
        Section(
            f"What {first} says about {len(predictions)} test pictures",
            join(_legend(), tag("div", *map(_card, predictions), class_="cards")),
            "Each small picture shows where the model looked for the label below it.",
        ),
        Section("The numbers", _table(runs), "On pictures that took no part in the training; from 0 to 100."),
        Section("Learning", _curves(training_curves, list(runs))),
        Section("Label by label", _per_label(runs)),
    ]
    return write_report(
        Path(folder_out) / "report.html",
        title="labelwise demo",
        lead=_lead(runs, seconds),
        sections=sections,
        footer=f"Written by labelwise {version('labelwise')} in make demo. "
        "Every number and picture on this page was made in that run.",
    )


def _lead(runs: Mapping[str, Mapping[str, Any]], seconds: float) -> Html:
    """One sentence and the numbers to remember."""
    (first, metrics), *others = runs.items()
    tiles = [_tile(f"{first} mAP", _number(metrics.get("mAP")), accent=True)]
    tiles += [_tile(f"{name} mAP", _number(other.get("mAP"))) for name, other in others]
    tiles.append(_tile("from nothing to this page", _duration(seconds)))
    where = f"{metrics['images']:,} test pictures" if "images" in metrics else "the test pictures"
    labels = f"{metrics['labels']:,} labels" if "labels" in metrics else "all labels"
    sentence = (
        f"{_listed(list(runs))} learned the same pictures on this machine. Below: how well they name {labels} in "
        f"{where}, and where {first} looked."
    )
    return join(tag("p", sentence, class_="lead"), tag("dl", *tiles, class_="tiles"))


def _tile(name: str, value: str, accent: bool = False) -> Html:
    return tag("div", tag("dt", name), tag("dd", value), class_="tile accent" if accent else "tile")


def _table(runs: Mapping[str, Mapping[str, Any]]) -> Html:
    """Metrics down, runs across; the difference if there are two runs."""
    names = list(runs)
    compare = len(names) == 2
    heads = [tag("th", name, scope="col", class_="number") for name in names]
    if compare:
        heads.append(tag("th", "difference", scope="col", class_="number"))
    rows = []
    for key, meaning in _METRICS:
        values = [runs[name].get(key) for name in names]
        best = max((value for value in values if value is not None), default=None)
        cells = [
            tag("td", tag("strong", _number(v)) if v is not None and v == best else _number(v), class_="number")
            for v in values
        ]
        if compare:
            cells.append(tag("td", _difference(*values), class_="number"))
        rows.append(tag("tr", tag("th", key, tag("small", meaning), scope="row"), *cells))
    head = tag("thead", tag("tr", tag("th", "metric", scope="col"), *heads))
    return tag("table", head, tag("tbody", *rows), class_="metrics")


def _curves(curves: Mapping[str, Sequence[Mapping[str, float]]], order: list[str]) -> Html:
    """In the order of the runs, so that a run has the same colour everywhere."""

    def series(key: str) -> dict[str, list[tuple[float, float]]]:
        return {name: [(point["epoch"], _or_nan(point.get(key))) for point in curves.get(name, [])] for name in order}

    charts = [
        line_chart(series("mAP"), title="mAP on validation pictures", x_label="epoch", y_label="mAP"),
        line_chart(series("loss"), title="Training loss", x_label="epoch", y_label="loss"),
    ]
    return tag("div", *charts, class_="charts")


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _per_label(runs: Mapping[str, Mapping[str, Any]]) -> Html:
    """Average precision of every label, the first run's best on top."""
    by_run = {name: {row["label"]: row for row in metrics["per_label"]} for name, metrics in runs.items()}
    first = next(iter(by_run.values()))
    order = sorted(first, key=lambda label: -(first[label]["AP"] if first[label]["AP"] is not None else -1.0))
    series = {name: [rows.get(label, {}).get("AP") for label in order] for name, rows in by_run.items()}
    return bar_chart([str(label) for label in order], series, title="Average precision of each label")


def _card(picture: DemoPicture) -> Html:
    truth, predicted = set(picture.truth), picture.predicted
    missed = [label for label in picture.truth if label not in predicted]
    wrong = sum(label not in truth for label in predicted)
    verdict = f"{len(truth) - len(missed)} of {len(truth)} found, {wrong} wrong"
    photo = tag("img", src=data_uri(picture.image), alt=f"{picture.name}: {_listed(list(picture.truth))}")
    facts = tag(
        "div",
        tag("h3", picture.name, tag("small", verdict)),
        tag("p", tag("span", "In it: ", class_="muted"), _listed(list(picture.truth)) or "none of the labels"),
        tag(
            "p",
            tag("span", "Missed: ", class_="muted"),
            join(*(_mark("missed", label) for label in missed)) if missed else "nothing",
        ),
    )
    said = [_said(label, score, label in truth, picture.overlays.get(label)) for label, score in predicted.items()]
    looked = tag("div", *said, class_="looked") if said else tag("p", "It named no label.", class_="muted")
    return tag("article", tag("div", photo, facts, class_="photo"), looked, class_="card")


def _said(label: str, score: float, right: bool, looked: Image.Image | None) -> Html:
    picture = tag("img", src=data_uri(looked, 200), alt=f"where it looked for {label}") if looked else None
    return tag("figure", picture, tag("figcaption", _mark("right" if right else "wrong", label), f" {score:.2f}"))


def _mark(kind: str, label: str) -> Html:
    """A sign, a word for screen readers and a colour: no meaning rests on the colour alone."""
    sign = {"right": "\N{CHECK MARK}", "wrong": _TIMES, "missed": "\N{WHITE CIRCLE}"}[kind]
    return tag(
        "span",
        tag("b", sign, aria_hidden="true"),
        tag("span", f"{kind}: ", class_="spoken"),
        label,
        class_=f"mark {kind}",
    )


def _legend() -> Html:
    marks = [_mark("right", "right"), _mark("wrong", "wrong"), _mark("missed", "missed")]
    scale = tag("span", "looked least", tag("i", class_="scale"), "looked most", class_="heat")
    return tag("p", *marks, scale, class_="key")


# ---- words and numbers


def _number(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.1f}"


def _difference(a: float | None, b: float | None) -> str:
    if a is None or b is None:
        return ""
    # Of the printed numbers, or 91.2 and 90.9 might differ by 0.2.
    gap = round(a, 1) - round(b, 1)
    return f"{'+' if gap >= 0 else _MINUS}{abs(gap):.1f}"


def _duration(seconds: float) -> str:
    """
    >>> _duration(8.2), _duration(142), _duration(3725)
    ('8 s', '2 min 22 s', '1 h 2 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _listed(names: Sequence[str]) -> str:
    """
    >>> _listed(["HSQ", "GAP"]), _listed(["a", "b", "c"]), _listed([])
    ('HSQ and GAP', 'a, b and c', '')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
