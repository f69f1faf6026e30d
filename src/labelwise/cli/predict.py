"""`labelwise predict`: labels for pictures and folders of pictures, on the terminal and as CSV or JSON."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress

from labelwise.errors import LabelwiseError

if TYPE_CHECKING:
    from labelwise.tagger import Prediction

_FEW = 8  # pictures that need no progress bar
_NEAR = 0.6  # of its threshold: a label that comes this close is shown as a near miss
_NEAR_SHOWN = 3
_WIDEST_NAME = 60  # characters: longer paths do not push the labels of all others to the right

Labels = list[tuple[str, float]]
Write = Callable[["Prediction", Labels], None]


def predict(
    model: str,
    paths: Annotated[list[Path], Parameter(negative=())],
    /,
    *,
    top: int | None = None,
    threshold: float | None = None,
    json_file: Annotated[Path | None, Parameter("--json")] = None,
    csv_file: Annotated[Path | None, Parameter("--csv")] = None,
    labels: str | None = None,
    engine: Literal["auto", "torch", "onnxruntime", "openvino"] = "auto",
    batch_size: int = 32,
    on_bad_image: Literal["error", "skip"] = "error",
) -> None:
    """Say which labels apply to each picture, and how sure the model is.

    Parameters
    ----------
    model
        A run folder, a model folder, an exported model or a hub id.
    paths
        Pictures, or folders that are searched for pictures with all folders in them.
    top
        The K best labels whatever their thresholds; with --threshold, at most K of those that reach it.
    threshold
        One threshold for all labels instead of the model's own.
    json_file
        Also write a JSON list into this file, one line for each picture, with the scores of all labels.
    csv_file
        Also write a table into this file: image, labels, scores. It is a manifest that --data reads.
    labels
        Other labels than the model was trained for, separated by commas, if it works on words.
    engine
        What runs the model. auto: an exported model's own; of others the fastest that gives the same scores, measured
        once if there are many pictures, else torch.
    batch_size
        Pictures that go through the model at once.
    on_bad_image
        A picture that cannot be decoded is an error, or is skipped and named on stderr.
    """
    if top is not None and top < 1:
        raise LabelwiseError(f"--top {top}: give 1 or more")
    # Mistakes in the paths are told before PyTorch and the model are loaded.
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        raise LabelwiseError(f"no such file or folder: {str(missing)!r}")
    from labelwise.tagger import find_images, load

    sources = [str(source) for source in find_images(paths)]
    names = None if labels is None else [name.strip() for name in labels.split(",") if name.strip()]
    tagger = load(
        model,
        threshold=threshold,
        engine=engine,
        labels=names,
        images=len(sources),
        batch_size=batch_size,
        say=(lambda text: _say(text, stderr=True)) if len(sources) > _FEW else None,
    )
    width = max((len(source) for source in sources if len(source) <= _WIDEST_NAME), default=0)
    near_misses = top is None and tagger.config.task == "multi-label"
    skipped = 0
    with ExitStack() as files:
        writers: list[Write] = []
        if json_file:
            writers.append(files.enter_context(_json_writer(json_file)))
        if csv_file:
            writers.append(files.enter_context(_csv_writer(csv_file, tagger.labels)))
        predictions = tagger.stream(sources, batch_size=batch_size, on_bad_image=on_bad_image)
        for prediction in _with_progress(predictions, len(sources)):
            chosen = _chosen(prediction, top, threshold)
            if prediction.error:
                skipped += 1
                _say(f"skipped: {prediction.error}", stderr=True)
            else:
                _say(describe(prediction, chosen, near_misses=near_misses, width=width))
            for write in writers:
                write(prediction, chosen)
    if skipped:
        _say(f"{skipped} of {len(sources)} pictures were skipped", stderr=True)


def _chosen(prediction: Prediction, top: int | None, threshold: float | None) -> Labels:
    """The labels to show, best first."""
    passing = list(zip(prediction.labels, prediction.scores, strict=True))
    if top is None:
        return passing
    return passing[:top] if threshold is not None else list(prediction.all_scores.items())[:top]


def describe(prediction: Prediction, chosen: Labels, *, near_misses: bool, width: int = 0) -> str:
    """`photo.jpg   dog 0.98   person 0.91   (sofa 0.34, below its threshold 0.52)`"""
    said = [f"{label} {score:.2f}" for label, score in chosen] or ["no label"]
    if near_misses:
        said += _near_misses(prediction)
    return "   ".join([str(prediction.image).ljust(width), *said])


def _near_misses(prediction: Prediction) -> list[str]:
    thresholds, named = prediction.thresholds, set(prediction.labels)
    below = [(label, score) for label, score in prediction.all_scores.items() if label not in named]
    near = [(label, score) for label, score in below if score >= _NEAR * thresholds[label]][:_NEAR_SHOWN]
    if not named:  # say at least what came nearest
        near = near or sorted(below, key=lambda entry: thresholds[entry[0]] - entry[1])[:1]
    texts = [_both(score, thresholds[label]) for label, score in near]
    if len(near) == 1:
        return [f"({near[0][0]} {texts[0][0]}, below its threshold {texts[0][1]})"]
    several = ", ".join(f"{label} {score} < {limit}" for (label, _), (score, limit) in zip(near, texts, strict=True))
    return [f"(below their thresholds: {several})"] if near else []


def _both(score: float, threshold: float) -> tuple[str, str]:
    """With as many digits as it takes to see that they differ.

    >>> _both(0.34, 0.52), _both(0.5196, 0.5204)
    (('0.34', '0.52'), ('0.5196', '0.5204'))
    """
    digits = 2 if f"{score:.2f}" != f"{threshold:.2f}" else 4
    return f"{score:.{digits}f}", f"{threshold:.{digits}f}"


def _with_progress(predictions: Iterator[Prediction], total: int) -> Iterator[Prediction]:
    """A bar on stderr for more than a few pictures, if somebody looks."""
    console = Console(stderr=True)
    hidden = total <= _FEW or not console.is_terminal
    # Lines for a terminal pass through the bar's console, or they would tear it; lines for a pipe must not.
    with Progress(console=console, transient=True, disable=hidden, redirect_stdout=sys.stdout.isatty()) as progress:
        yield from progress.track(predictions, total, description="Predicting")


@contextmanager
def _json_writer(path: Path) -> Iterator[Write]:
    """A JSON list with a line for each picture: one file for `json.load` and for `grep`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        before = "[\n"

        def write(prediction: Prediction, chosen: Labels) -> None:
            nonlocal before
            content: dict[str, Any] = {"image": prediction.image}
            if prediction.error:
                content["error"] = prediction.error
            else:
                content |= {"labels": dict(chosen), "all_scores": prediction.all_scores}
            file.write(before + json.dumps(content, ensure_ascii=False))
            before = ",\n"

        try:
            yield write
        finally:  # also after Ctrl-C: what was done is a complete file
            file.write("\n]\n" if before == ",\n" else "[]\n")


@contextmanager
def _csv_writer(path: Path, labels: tuple[str, ...]) -> Iterator[Write]:
    """Skipped pictures get no row: one without labels would say that nothing is in them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # `a|b` is what people expect to see; as soon as it could be misread, names are written as JSON lists.
    plain = not any("|" in label or label.startswith("[") for label in labels)
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["image", "labels", "scores"])

        def write(prediction: Prediction, chosen: Labels) -> None:
            if prediction.error:
                return
            image = str(prediction.image)
            place = image if os.path.isabs(image) else os.path.relpath(image, path.parent)
            names, scores = [name for name, _ in chosen], [f"{score:.4f}" for _, score in chosen]
            table.writerow([place, "|".join(names) if plain else json.dumps(names), "|".join(scores)])

        yield write


def _say(text: str, stderr: bool = False) -> None:
    """A line as it is: paths hold brackets and are longer than a terminal is wide."""
    Console(stderr=stderr).print(text, markup=False, highlight=False, soft_wrap=True)
