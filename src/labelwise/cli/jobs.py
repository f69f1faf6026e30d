"""`labelwise predict --out DIR`: many images into Parquet, in parts that survive every interruption."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

import labelwise as lw
from labelwise.cli.common import AtLeastOne, Flag, note
from labelwise.core.errors import LabelwiseError
from labelwise.core.progress import progress_of

if TYPE_CHECKING:
    from labelwise.jobs.job import JobSummary
    from labelwise.jobs.run import PartResult
    from labelwise.runtime.sessions import EngineName


@Parameter(name="*", group="Large jobs", negative=())
@dataclass(frozen=True)
class JobOptions:
    """Many images into Parquet.

    Parameters
    ----------
    out
        Write Parquet files to this folder or bucket; the same command continues where it was interrupted. Paths may
        then also be *.tar shards, *.parquet files and addresses such as s3://bucket/photos.
    runner
        local: one part after the other in this process. ray: on all cores, or on a cluster.
    address
        The Ray cluster: auto if this machine is part of it, or host:6379. Default: this machine alone.
    workers
        Processes that Ray may use. Default: one per core.
    part_size
        Images per part, which is what an interruption may cost. A tar shard is one part, whatever its size.
    column
        The column of Parquet files that holds the images or their paths.
    all_scores
        Also write the scores of all labels, in the order of the labels in _job.json.
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


def run_job(
    options: JobOptions,
    model: str,
    sources: Iterable[str],
    listed: Iterable[str],
    *,
    top: int | None,
    threshold: float | None,
    labels: Sequence[str] | None,
    engine: EngineName,
    batch_size: int,
) -> None:
    assert options.out is not None
    start = time.monotonic()
    with progress_of("Predicting", None) as advance:

        def started(summary: JobSummary, images: int | None) -> None:
            if summary.already_there:
                note(f"resumed: {summary.already_there} of {summary.parts} parts are there already")
            advance.expect(images)
            nonlocal start
            start = time.monotonic()  # the model is loaded: from now on, time grows with the images

        def advanced(result: PartResult) -> None:
            advance(result.images)

        summary = lw.predict_job(
            sources,
            model,
            out=options.out,
            threshold=threshold,
            top=top,
            labels=labels,
            engine=engine,
            batch_size=batch_size,
            runner=options.runner,
            address=options.address,
            workers=options.workers,
            part_size=options.part_size,
            column=options.column,
            all_scores=options.all_scores,
            listed=listed,
            started=started,
            advanced=advanced,
            say=note,
        )
    speed = summary.images / (time.monotonic() - start)
    note(
        f"{options.out}: {summary.images} images in {summary.parts - summary.already_there} parts "
        f"({speed:.1f} images/s); {summary.errors} of them could not be decoded (column error)"
    )
