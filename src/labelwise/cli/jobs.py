"""`labelwise predict --out DIR`: many pictures into Parquet, in parts that survive every interruption."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from cyclopts import Parameter

from labelwise.cli.common import say
from labelwise.core.errors import LabelwiseError
from labelwise.core.progress import picture_progress

if TYPE_CHECKING:
    from labelwise.jobs.job import JobSummary
    from labelwise.jobs.run import PartResult
    from labelwise.runtime.sessions import EngineName


@Parameter(name="*", group="Large jobs", negative=())
@dataclass(frozen=True)
class JobOptions:
    """Many pictures into Parquet.

    Parameters
    ----------
    out
        Write Parquet files into this folder or bucket; the same command goes on where it was interrupted. Paths may
        then also be *.tar shards, *.parquet files and addresses such as s3://bucket/photos.
    runner
        local: one part after the other in this process. ray: on all cores, or on a cluster.
    address
        The Ray cluster to run on: auto if this machine is part of it, or host:6379. Without it Ray is started on this
        machine alone.
    workers
        Processes that Ray may use; without it, one for each core.
    part_size
        Pictures in a part, which is what an interruption may cost. A tar shard is one part, whatever its size.
    column
        The column of Parquet files that holds the pictures or their paths.
    all_scores
        Write the scores of all labels, in the order of the labels in _job.json.
    """

    out: str | None = None
    runner: Literal["local", "ray"] = "local"
    address: str | None = None
    workers: int | None = None
    part_size: int = 500
    column: str | None = None
    all_scores: bool = False

    @property
    def given(self) -> bool:
        """Whether a large job is wanted; then it has to say where to."""
        if self.out is None and self != JobOptions():
            raise LabelwiseError(
                "--runner, --address, --workers, --part-size, --column and --all-scores are for large jobs: "
                "add --out DIR"
            )
        if (self.address or self.workers) and self.runner != "ray":
            raise LabelwiseError("--address and --workers are about Ray: add --runner ray")
        if self.workers is not None and self.workers < 1:
            raise LabelwiseError(f"--workers {self.workers}: give 1 or more")
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
    from labelwise import jobs as batch

    assert options.out is not None
    settings = batch.JobSettings(
        top=top,
        threshold=threshold,
        labels=None if labels is None else tuple(labels),
        engine=engine,
        batch_size=batch_size,
        all_scores=options.all_scores,
    )
    parts = batch.find_parts(sources, listed=listed, part_size=options.part_size, column=options.column)
    start = time.monotonic()
    with picture_progress(None) as progress:
        task = progress.task_ids[0]

        def started(summary: JobSummary, pictures: int | None) -> None:
            if summary.already_there:
                say(f"resumed: {summary.already_there} of {summary.parts} parts are there already", stderr=True)
            progress.update(task, total=pictures)
            nonlocal start
            start = time.monotonic()  # the model is loaded: what comes now is what a longer job has more of

        def advanced(result: PartResult) -> None:
            progress.advance(task, result.pictures)

        summary = batch.run_job(
            model,
            parts,
            options.out,
            settings,
            runner=options.runner,
            address=options.address,
            workers=options.workers,
            started=started,
            advanced=advanced,
            say=partial(say, stderr=True),
        )
    speed = summary.pictures / (time.monotonic() - start)
    say(
        f"{options.out}: {summary.pictures} pictures in {summary.parts - summary.already_there} parts "
        f"({speed:.1f} images/s); {summary.errors} of them could not be decoded (column error)",
        stderr=True,
    )
