"""`labelwise report`: a page about one run, or a comparison of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import labelwise as lw
from labelwise.cli.common import BatchSize, Flag, Names, Workers, say, warn


def report(
    runs: Names,
    /,
    *,
    out: Path = Path("report"),
    data: str | None = None,
    split: str | None = None,
    reference: str | None = None,
    pair: Annotated[list[str] | None, Parameter(negative=())] = None,
    images: Annotated[int, Parameter(("--images", "--pictures"))] = 12,
    predictions: int = 0,
    quality: Flag = False,
    per_label_baseline: Flag = False,
    bootstrap: int = 1000,
    batch_size: BatchSize = 32,
    workers: Workers = 2,
) -> None:
    """Write one HTML page about a run, or a comparison of several, with JSON and CSV files beside it.

    Predictions are computed once and kept in RUN/predictions, so the next report of the same run takes seconds.

    Parameters
    ----------
    runs
        Run folders, model folders or hub ids; several are compared on the same images.
    out
        Folder for report.html and the files beside it.
    data
        The dataset to measure on. Default: the data of the runs' recipe.
    split
        The images to measure on: a split, several (train+val), or all. Default: test if there is one, else val.
    reference
        The run that the others are compared with, by its name on the page. Default: the first one.
    pair
        Two related labels to compare across the runs, e.g. cow,horse; may be repeated.
    images
        How many of the worst mistakes of each kind to show.
    predictions
        How many images to show with their predictions and attention maps.
    quality
        Also list labels that are probably wrong or missing; needs pip install 'labelwise[quality]'.
    per_label_baseline
        Also fit one model per label on the same frozen features, and show which labels lose from joint training.
    bootstrap
        Bootstrap samples for intervals and comparisons.
    """
    page = lw.report(
        runs,
        out=out,
        data=data,
        split=split,
        reference=reference,
        pairs=pair or [],
        images=images,
        predictions=predictions,
        quality=quality,
        per_label_baseline=per_label_baseline,
        bootstrap=bootstrap,
        batch_size=batch_size,
        workers=workers,
        warn=warn,
    )
    say(f"Open {page} in a browser.")
