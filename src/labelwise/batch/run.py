"""A whole job: see what is done, do the rest, write each part when it is complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from labelwise.batch.job import JobFolder, JobSettings, JobSummary
from labelwise.batch.model_files import ModelFiles
from labelwise.batch.parts import Part
from labelwise.batch.worker import PartResult, PartWorker, open_tagger
from labelwise.errors import LabelwiseError

Runner = Literal["local", "ray"]


def run_job(
    model: str,
    parts: Sequence[Part],
    out: str,
    settings: JobSettings,
    *,
    runner: Runner = "local",
    address: str | None = None,
    workers: int | None = None,
    started: Callable[[JobSummary, int | None], None] = lambda summary, pictures: None,
    advanced: Callable[[PartResult], None] = lambda result: None,
    say: Callable[[str], None] | None = None,
) -> JobSummary:
    """Predict all `parts` into the folder `out`, except those that an earlier run finished.

    A part that cannot be read (a broken shard) does not keep the others from being done; it raises at the end.
    `started` is told what is there already and how many pictures are to come, `advanced` each part that ended.
    """
    folder, files = JobFolder(out), ModelFiles.read(model)
    counts = [part.count for part in parts]
    if settings.engine == "auto":
        # Scores depend in their last digits on what computes them: it is chosen once, and kept for the whole job.
        images = sum(count or 0 for count in counts)
        engine = folder.engine_of_earlier_run() or open_tagger(model, settings, images, say).engine.family
        settings = settings.model_copy(update={"engine": engine})
    # Opened again by its name, as every later run and every worker will: "auto" leaves PyTorch unoptimised for a few
    # pictures, which differs in the last digits.
    tagger = open_tagger(model, settings)
    folder.start(files.fingerprint, parts, tagger.labels, settings)

    finished = folder.finished()
    summary = JobSummary(len(parts), already_there=len(finished))
    todo = [(number, part) for number, part in enumerate(parts) if number not in finished]
    left = [counts[number] for number, _ in todo]
    started(summary, None if None in left else sum(count or 0 for count in left))
    if runner == "ray" and todo:
        from labelwise.batch.ray_runner import ray_results

        results = ray_results(todo, files, settings, address=address, workers=workers)
    else:
        worker = PartWorker(tagger, settings)
        results = (worker(number, part) for number, part in todo)
    for result in results:
        if result.problem is not None:
            summary.failed[result.number] = result.problem
        else:
            folder.write_part(result.number, result.content)
            summary.pictures += result.pictures
            summary.errors += result.errors
        advanced(result)
    if summary.failed:
        number, problem = min(summary.failed.items())
        raise LabelwiseError(
            f"{len(summary.failed)} of {len(parts)} parts could not be done; part {number}: {problem}. The others are "
            f"in {out!r}: repair the source and run the same command again"
        )
    return summary
