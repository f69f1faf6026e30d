"""`labelwise evaluate`: how good a model is on a dataset, how sure that is, and thresholds that fit."""

from __future__ import annotations

import json
from typing import Annotated

from rich.console import Console

import labelwise as lw
from labelwise.cli.common import (
    BatchSize,
    Data,
    Engine,
    Flag,
    JsonFile,
    Model,
    NotNegative,
    OnBadImage,
    Split,
    Workers,
    note,
    say,
    warn,
)
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write


def evaluate(
    model: Model = None,
    /,
    *,
    data: Data,
    split: Split = "test",
    json_file: JsonFile = None,
    flip: Flag = False,
    scales: str = "1.0",
    fit_thresholds: str | None = None,
    fit_temperature: Flag = False,
    fit_on: str | None = None,
    save: Flag = False,
    unseen: str | None = None,
    bootstrap: Annotated[int, NotNegative] = 1000,
    on_bad_image: OnBadImage = "error",
    ignore_extra_labels: Flag = False,
    batch_size: BatchSize = 32,
    workers: Workers = 2,
    cache: bool = False,
    engine: Engine = "auto",
) -> None:
    """Measure a model on a dataset: every metric with a confidence interval, and a table of all labels.

    Parameters
    ----------
    flip
        Average over each image and its mirror image.
    scales
        Average over these multiples of the model's input size, e.g. 0.8,1.0,1.2.
    fit_thresholds
        Fit a threshold for each label: f1, or a target such as precision=0.9 or recall=0.8.
    fit_temperature
        Fit a temperature and an offset, so that scores are probabilities.
    fit_on
        The split to fit on; best one that is not measured on. Default: the one of --split.
    save
        Write what was fitted into the model. By default it is used for this evaluation only.
    unseen
        Zero-shot: labels that the training did not see, a file with one per line or names separated by commas. They are
        measured alone (ZSL) and with the seen ones (GZSL). Default: those of the run's recipe. none: no unseen labels.
    bootstrap
        Bootstrap samples for the confidence intervals; 0 for none.
    ignore_extra_labels
        Leave out labels of the data that the model does not have.
    cache
        Keep the backbone's features on disk, and use those that are there.
    """
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
    evaluation = lw.evaluate(
        model,
        data,
        split=split,
        flip=flip,
        scales=_numbers(scales),
        fit_thresholds=fit_thresholds,
        fit_temperature=fit_temperature,
        fit_on=fit_on,
        save=save,
        unseen=unseen,
        bootstrap=bootstrap,
        on_bad_image=on_bad_image,
        ignore_extra_labels=ignore_extra_labels,
        batch_size=batch_size,
        workers=workers,
        cache=cache,
        engine=engine,
        warn=warn,
        say=note,
    )
    from labelwise.evaluation.tables import headline, headline_table, label_table, notes

    result = evaluation.to_dict()
    # First the file, then the tables: `labelwise evaluate … | head` ends the printing early.
    if json_file:
        atomic_write(json_file, json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    say(headline(result))
    for table in (label_table(result), headline_table(result)):
        Console(highlight=False).print(table)
    for line in notes(result):
        say(line)
    if save:
        say(f"{model}: saved what was fitted on {fit_on or split}")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise LabelwiseError(f"--scales {text!r}: write numbers with commas between them, as in 0.8,1.0,1.2") from None
