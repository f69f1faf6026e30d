"""`labelwise report`: a page about one run, or about several against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from labelwise.core.errors import LabelwiseError


def report(
    runs: Annotated[list[str], Parameter(negative=())],
    /,
    *,
    out: Path = Path("report"),
    data: str | None = None,
    split: str | None = None,
    reference: str | None = None,
    pair: Annotated[list[str] | None, Parameter(negative=())] = None,
    pictures: int = 12,
    quality: Annotated[bool, Parameter(negative=())] = False,
    per_label_baseline: Annotated[bool, Parameter(negative=())] = False,
    bootstrap: int = 1000,
    batch_size: int = 32,
    workers: int = 2,
) -> None:
    """Write one HTML page about a run, or about several against each other, with JSON and CSV files beside it.

    Predictions are computed once and kept in RUN/predictions: the next report of the same run takes seconds.

    Parameters
    ----------
    runs
        Run folders, model folders or hub ids; several are compared on the same images.
    out
        Folder for report.html and the files beside it.
    data
        What to measure on; without it, the data of the runs' own recipe.
    split
        The images to measure on: a split, several (train+val), or all; without it, test if there is one, else val.
    reference
        The run that the others are compared with, by its name on the page; without it, the first one.
    pair
        Two related labels to compare over the runs, as in cow,horse; may be given several times.
    pictures
        How many of the worst mistakes of each kind to show.
    quality
        Also list labels that are probably wrong or missing; needs pip install 'labelwise[quality]'.
    per_label_baseline
        Also fit one model per label on the same frozen features, and show which labels suffer from company.
    bootstrap
        How many samples of the images to draw for intervals and comparisons.
    batch_size
        Pictures at a time.
    workers
        Processes that decode pictures.
    """
    for name, value, least in (
        ("bootstrap", bootstrap, 0),
        ("pictures", pictures, 0),
        ("batch-size", batch_size, 1),
        ("workers", workers, 0),
    ):
        if value < least:
            raise LabelwiseError(f"--{name} {value}: give a number of {least} or more")
    from labelwise.reports.page import ReportOptions, runs_report

    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    page = runs_report(
        runs,
        out,
        ReportOptions(
            data=data,
            split=split,
            reference=reference,
            pairs=pair or (),
            pictures=pictures,
            quality=quality,
            per_label_baseline=per_label_baseline,
            bootstrap=bootstrap,
            batch_size=batch_size,
            workers=workers,
            warn=lambda text: errors.print(f"warning: {text}", markup=False, soft_wrap=True),
        ),
    )
    console.print(f"Open {page} in a browser.", markup=False, soft_wrap=True)
