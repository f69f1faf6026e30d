"""`lw.evaluate` and `lw.report`: how good models are, as numbers and as a page."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.api.inputs import model_path
from labelwise.core.errors import LabelwiseError

if TYPE_CHECKING:
    from labelwise.training.run import Run


def report(
    runs: str | Path | Run | Sequence[str | Path | Run],
    *,
    out: str | Path = "report",
    data: str | Path | None = None,
    split: str | None = None,
    reference: str | None = None,
    pairs: Sequence[str | tuple[str, str]] = (),
    images: int = 12,
    quality: bool = False,
    per_label_baseline: bool = False,
    bootstrap: int = 1000,
    batch_size: int = 32,
    workers: int = 2,
    progress: bool = True,
    warn: Callable[[str], None] = warnings.warn,
) -> Path:
    """Write one HTML page about a run, or a comparison of several, with JSON and CSV files beside it.

    Predictions are computed once and kept in the run folders, so the next report of the same run takes seconds.

    Args:
        runs: Runs, model folders or hub ids; several are compared on the same images.
        out: Folder for `report.html` and the files beside it.
        data: The dataset to measure on. Default: the data of the runs' recipe.
        split: The images to measure on: a split, several (`train+val`), or `all`. Default: `test`, else `val`.
        reference: The run that the others are compared with, by its name on the page. Default: the first one.
        pairs: Pairs of related labels to compare across the runs, e.g. `[("cow", "horse")]`.
        images: How many of the worst mistakes of each kind to show.
        quality: Also list labels that are probably wrong or missing (needs the extra `quality`).
        per_label_baseline: Also fit one model per label on the same frozen features, to find negative transfer.
        bootstrap: Bootstrap samples for intervals and comparisons.
        batch_size: Images per batch.
        workers: Processes that decode images.
        progress: Show a progress bar.
        warn: Called with what limits the numbers, e.g. images that a run was trained on.

    Returns:
        The page.

    Example:
        >>> import labelwise as lw
        >>> lw.report(["runs/q2l", "runs/hsq"], out="compare")  # doctest: +SKIP
        PosixPath('compare/report.html')
    """
    at_least(bootstrap=(bootstrap, 0), images=(images, 0), batch_size=(batch_size, 1), workers=(workers, 0))
    from labelwise.reports.page import ReportOptions, runs_report

    several = runs if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    options = ReportOptions(
        data=None if data is None else str(data),
        split=split,
        reference=reference,
        pairs=[pair if isinstance(pair, str) else ",".join(pair) for pair in pairs],
        pictures=images,
        quality=quality,
        per_label_baseline=per_label_baseline,
        bootstrap=bootstrap,
        batch_size=batch_size,
        workers=workers,
        progress=progress,
        warn=warn,
    )
    return runs_report([model_path(run) for run in several], out, options)


def at_least(**numbers: tuple[float, float]) -> None:
    """An error for the first number below its minimum.

    >>> at_least(workers=(-1, 0))
    Traceback (most recent call last):
    labelwise.core.errors.LabelwiseError: workers must be 0 or more, not -1
    """
    for name, (value, minimum) in numbers.items():
        if value < minimum:
            raise LabelwiseError(f"{name} must be {minimum} or more, not {value}")
