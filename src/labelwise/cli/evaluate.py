"""`labelwise evaluate`: how good a model is on a dataset, how sure that is, and thresholds that fit."""

from __future__ import annotations

import json
from typing import Annotated

from cyclopts import Parameter

import labelwise as lw
from labelwise.cli.common import (
    BatchSize,
    Engine,
    FileName,
    Flag,
    JsonFile,
    Model,
    NotNegative,
    OnBadImage,
    Repeated,
    Split,
    Workers,
    described_by,
    note,
    say,
    takes_table,
    warn,
)
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write, check_replaceable
from labelwise.core.terminal import open_console


@takes_table
@described_by("api.evaluation:evaluate")
def evaluate(
    model: Model = None,
    /,
    *,
    data: FileName | None = None,
    split: Split = None,
    json_file: JsonFile = None,
    flip: Flag = False,
    scales: str = "1.0",
    fit_thresholds: str | None = None,
    fit_temperature: Flag = False,
    fit_on: str | None = None,
    save: Flag = False,
    unseen: str | None = None,
    conventions: Annotated[tuple[str, ...], Parameter("--as"), Repeated] = (),
    bootstrap: Annotated[int, NotNegative] = 1000,
    on_bad_image: OnBadImage = "error",
    ignore_extra_labels: Flag = False,
    batch_size: BatchSize = 32,
    workers: Workers = 0,
    cache: bool = False,
    engine: Engine = "auto",
) -> None:
    """Measure a model on a dataset: every metric with a confidence interval, and a table of all labels.

    Parameters
    ----------
    data
        A path (its format is recognised), format:path or shards. Default: the data that the run was trained on.
    scales
        Average over these multiples of the model's input size, separated by commas: 0.8,1.0,1.2.
    """
    options = {name: value for name, value in locals().items() if name != "json_file"}
    if json_file:
        check_replaceable(json_file)
        json_file.parent.mkdir(parents=True, exist_ok=True)
    evaluation = lw.evaluate(**options | {"scales": _numbers(scales)}, warn=warn, say=note)
    from labelwise.evaluation.tables import convention_table, headline, headline_table, label_table, notes

    result = evaluation.to_dict()
    # First the file, then the tables: `labelwise evaluate … | head` ends the printing early.
    if json_file:
        atomic_write(json_file, json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    say(headline(result))
    for table in (label_table(result), headline_table(result), convention_table(result)):
        if table is not None:
            open_console(highlight=False).print(table)
    for line in notes(result):
        say(line)
    if save:
        say(f"{model}: saved what was fitted on {fit_on or evaluation.split}")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise LabelwiseError(f"--scales {text!r}: write numbers with commas between them, as in 0.8,1.0,1.2") from None
