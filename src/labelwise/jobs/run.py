"""Run a job: find what is done, do the rest, write each part when it is complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from labelwise.core.errors import LabelwiseError, counted, missing_extra
from labelwise.core.files import atomic_write, cache_folder, sha256
from labelwise.data.images import BadImageError, Encoded
from labelwise.jobs.job import JobFolder, JobSettings, JobSummary
from labelwise.jobs.parts import Part
from labelwise.runtime.exported import find_export
from labelwise.runtime.folder import CONFIG, WEIGHTS, find_folder

if TYPE_CHECKING:
    from labelwise.runtime.prediction import Prediction
    from labelwise.runtime.tagger import Tagger

Runner = Literal["local", "ray"]


@dataclass(frozen=True)
class PartResult:
    number: int
    content: bytes = b""  # a Parquet file
    images: int = 0
    errors: int = 0  # images that have an error instead of labels
    problem: str | None = None  # why the whole part failed


def run_job(
    model: str,
    parts: Sequence[Part],
    out: str,
    settings: JobSettings,
    *,
    runner: Runner = "local",
    address: str | None = None,
    workers: int | None = None,
    started: Callable[[JobSummary, int | None], None] = lambda summary, images: None,
    advanced: Callable[[PartResult], None] = lambda result: None,
    say: Callable[[str], None] | None = None,
) -> JobSummary:
    """Predict all `parts` into the folder `out`, except those that an earlier run finished.

    A part that cannot be read (a broken shard) does not stop the others; it raises at the end.

    Args:
        model: A run folder, a model folder, an exported model or a hub id.
        parts: What `find_parts` gives.
        out: A folder or any address that fsspec knows.
        settings: What to write.
        runner: `local`: in this process. `ray`: on Ray.
        address: Of a Ray cluster. Default: Ray on this machine.
        workers: Processes of Ray. Default: one per core.
        started: Called with what is done already and the number of images to come (None: unknown).
        advanced: Called with the result of each part.
        say: Called with one line about the engine that was chosen, and about images that changed since an earlier run.

    Example:
        >>> parts = find_parts(["photos/"])  # doctest: +SKIP
        >>> run_job("runs/first", parts, "tags/", JobSettings(top=5))  # doctest: +SKIP
        JobSummary(parts=20, already_there=0, images=10000, errors=3, failed={})
    """
    if find_spec("pyarrow") is None:
        raise missing_extra("pyarrow", "parquet")
    folder, files = JobFolder(out), ModelFiles.read(model)
    counts = [part.count for part in parts]
    if settings.engine == "auto":
        # The last digits of scores depend on the engine: it is chosen once for the whole job.
        images = sum(count or 0 for count in counts)
        engine = folder.engine_of_earlier_run() or open_tagger(model, settings, images, say).family
        settings = settings.model_copy(update={"engine": engine})
    # Opened again by its name, as in every later run and worker: for a few images "auto" leaves PyTorch unoptimised,
    # which gives other last digits.
    tagger = open_tagger(model, settings)
    tagger.known_labels(settings.known)  # a mistake in them is told before anything is written
    folder.start(files.fingerprint, parts, tagger.labels, settings)

    finished = folder.finished()
    summary = JobSummary(len(parts), already_there=len(finished))
    if say and (changed := _changed(parts, finished)):
        number, file = changed[0]
        others = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        say(
            f"{file!r} was changed after part {number} was written{others}; to predict it again, remove "
            f"part-{number:06d}.parquet and run the same job again"
        )
    todo = [(number, part) for number, part in enumerate(parts) if number not in finished]
    left = [counts[number] for number, _ in todo]
    started(summary, None if None in left else sum(count or 0 for count in left))
    if runner == "ray" and todo:
        from labelwise.jobs.ray_runner import ray_results

        results = ray_results(todo, files, settings, address=address, workers=workers)
    else:
        worker = PartWorker(tagger, settings)
        results = (worker(number, part) for number, part in todo)
    for result in results:
        if result.problem is not None:
            summary.failed[result.number] = result.problem
        else:
            folder.write_part(result.number, result.content)
            summary.images += result.images
            summary.errors += result.errors
        advanced(result)
    if summary.failed:
        number, problem = min(summary.failed.items())
        raise LabelwiseError(
            f"{len(summary.failed)} of {counted(len(parts), 'part')} failed; part {number}: {problem}. The others are "
            f"in {out!r}; repair the source and run the same job again"
        )
    return summary


def _changed(parts: Sequence[Part], finished: Mapping[int, float]) -> list[tuple[int, str]]:
    """Local files that were replaced or edited since their part was written, the first of each part."""
    found = []
    for number, written in sorted(finished.items()):
        for file in parts[number].files if written and number < len(parts) else ():
            with suppress(OSError, ValueError):  # it is gone by now, or at an address
                about = os.stat(file)
                if max(about.st_mtime, about.st_ctime) > written:  # ctime: a file that was moved here keeps its mtime
                    found.append((number, file))
                    break
    return found


def open_tagger(
    model: str | Path, settings: JobSettings, images: int = 0, say: Callable[[str], None] | None = None
) -> Tagger:
    from labelwise.engines.load import load

    named = {"threshold", "engine", "labels", "batch_size"}
    return load(model, images=images, say=say, **settings.model_dump(include=named))


class PartWorker:
    """Predicts the images of a part into a Parquet file."""

    def __init__(self, tagger: Tagger, settings: JobSettings) -> None:
        self._tagger, self._settings = tagger, settings

    def __call__(self, number: int, part: Part) -> PartResult:
        """The same part gives the same bytes in any process: its batches are always the same."""
        try:
            rows = [self._row(prediction, problem) for prediction, problem in self._predictions(part)]
        except LabelwiseError as error:
            return PartResult(number, problem=str(error))
        except MemoryError:
            return PartResult(number, problem="its images do not fit into memory")
        errors = sum(row["error"] is not None for row in rows)
        return PartResult(number, _as_parquet(rows, self._settings.all_scores), len(rows), errors)

    def _predictions(self, part: Part) -> Iterator[tuple[Prediction, str | None]]:
        problems: list[str | None] = []

        def contents() -> Iterator[Encoded]:
            for image in part.images():
                problems.append(image.problem and str(BadImageError(image.name, image.problem)))
                yield Encoded(image.name, image.data)

        predictions = self._tagger.stream(
            contents(), batch_size=self._settings.batch_size, on_bad_image="skip", known=self._settings.known
        )
        for number, prediction in enumerate(predictions):
            yield prediction, problems[number]

    def _row(self, prediction: Prediction, problem: str | None) -> dict[str, Any]:
        row: dict[str, Any] = {"image": prediction.image, "labels": None, "scores": None, "error": prediction.error}
        if prediction.error is not None:
            row["error"] = problem or prediction.error
            return row
        chosen = prediction.choose(self._settings.top, self._settings.threshold)
        row |= {"labels": list(chosen), "scores": list(chosen.values())}
        if self._settings.all_scores:
            row["all_scores"] = [prediction.all_scores[label] for label in self._tagger.labels]
        return row


def _as_parquet(rows: list[dict[str, Any]], all_scores: bool) -> bytes:
    import pyarrow
    from pyarrow import parquet

    scores = pyarrow.list_(pyarrow.float32())
    columns = {"image": pyarrow.string(), "labels": pyarrow.list_(pyarrow.string()), "scores": scores}
    columns |= {"error": pyarrow.string()} | ({"all_scores": scores} if all_scores else {})
    table = pyarrow.Table.from_pylist(
        [{**row, "image": _valid(row["image"])} for row in rows], schema=pyarrow.schema(columns)
    )
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _valid(name: str) -> str:
    """Parquet needs UTF-8: other bytes in a file name become \\xNN."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model, to be sent to other machines."""

    contents: dict[str, bytes]

    @classmethod
    def read(cls, source: str) -> ModelFiles:
        """Of a run folder, a model folder, an exported model or a hub id."""
        folder = find_folder(source)
        if find_export(folder) is not None:
            files = [file for file in folder.iterdir() if file.is_file()]
        else:
            files = [folder / name for name in (CONFIG, WEIGHTS) if (folder / name).is_file()]
        return cls({file.name: file.read_bytes() for file in sorted(files)})

    @property
    def fingerprint(self) -> str:
        """
        >>> one, other = ModelFiles({"config.json": b"{}"}), ModelFiles({"config.json": b"[]"})
        >>> len(one.fingerprint), one.fingerprint == other.fingerprint
        (32, False)
        """
        parts = (
            part for name, content in sorted(self.contents.items()) for part in (f"{name} {len(content)}\n", content)
        )
        return sha256(*parts).hexdigest()[:32]

    def unpacked(self) -> Path:
        """Write them into a folder of the cache, once for all workers."""
        folder = cache_folder() / "models" / self.fingerprint
        for name, content in self.contents.items():
            if not (folder / name).is_file():
                atomic_write(folder / name, content)
        return folder
