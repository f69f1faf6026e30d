"""`labelwise report`: a page about one run, or a comparison of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import labelwise as lw
from labelwise.cli.common import BatchSize, FileName, Flag, Repeated, Workers, described_by, say, takes_table, warn


@takes_table
@described_by("api.evaluation:report")
def report(
    runs: Annotated[list[FileName], Repeated],
    /,
    *,
    out: Path = Path("report"),
    data: FileName | None = None,
    split: str | None = None,
    reference: str | None = None,
    pairs: Annotated[tuple[str, ...], Parameter("--pair"), Repeated] = (),
    images: Annotated[int, Parameter(("--images", "--pictures"))] = 12,
    predictions: int = 0,
    per_label_baseline: Flag = False,
    bootstrap: int = 1000,
    batch_size: BatchSize = 32,
    workers: Workers = 0,
) -> None:
    """Write one HTML page about a run, or a comparison of several, with JSON and CSV files beside it.

    Predictions are computed once and kept in RUN/predictions, so the next report of the same run takes seconds.

    Parameters
    ----------
    pairs
        Two related labels to compare across the runs, e.g. cow,horse; may be repeated.
    """
    page = lw.report(**locals(), warn=warn)
    say(f"Open {page} in a browser.")
