"""`labelwise predict --out DIR`: many images into Parquet, in parts that survive every interruption."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

import labelwise as lw
from labelwise.cli.common import AtLeastOne, Flag, described_by, note
from labelwise.core.errors import LabelwiseError, counted
from labelwise.core.progress import progress_of

if TYPE_CHECKING:
    from labelwise.jobs.job import JobSummary
    from labelwise.jobs.run import PartResult


@Parameter(name="*", group="Large jobs", negative=())
@described_by("api.prediction:predict_job")
@dataclass(frozen=True)
class JobOptions:
    """Many images into Parquet.

    Parameters
    ----------
    out
        Write Parquet files to this folder or bucket; the same command continues where it was interrupted. Paths may
        then also be *.tar shards, *.parquet files and addresses such as s3://bucket/photos.
    """

    out: str | None = None
    runner: Literal["local", "ray"] = "local"
    address: str | None = None
    workers: Annotated[int | None, AtLeastOne] = None
    part_size: int = 500
    column: str | None = None
    all_scores: Flag = False

    @property
    def given(self) -> bool:
        """Whether a large job is wanted; then it has to say where to."""
        if self.out is None and self != JobOptions():
            raise LabelwiseError(
                "--runner, --address, --workers, --part-size, --column and --all-scores are for large jobs: "
                "add --out DIR"
            )
        return self.out is not None


def run_job(options: JobOptions, model: str, sources: Iterable[str], listed: Iterable[str], **choices: Any) -> None:
    start = time.monotonic()
    with progress_of("Predicting", None) as advance:

        def started(summary: JobSummary, images: int | None) -> None:
            if summary.already_there:
                note(f"resumed: {summary.already_there} of {counted(summary.parts, 'part')} done already")
            advance.expect(images)
            nonlocal start
            start = time.monotonic()  # the model is loaded: from now on, time grows with the images

        def advanced(result: PartResult) -> None:
            advance(result.images)

        given = {**vars(options), **choices}
        summary = lw.predict_job(sources, model, **given, listed=listed, started=started, advanced=advanced, say=note)
    speed, parts = summary.images / (time.monotonic() - start), summary.parts - summary.already_there
    note(
        f"{options.out}: {counted(summary.images, 'image')} in {counted(parts, 'part')} "
        f"({speed:.1f} images/s); {summary.errors} of them could not be decoded (column error)"
    )
