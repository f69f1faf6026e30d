"""`lw.predict`: labels for images, in memory, one at a time, in files, or as a large job.

Nothing here imports PyTorch before the model asks for it: an exported model predicts without.
"""

from __future__ import annotations

import glob
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import finalize

from labelwise.api.inputs import model_name, model_path, require, require_choice
from labelwise.bundled import default_model
from labelwise.core.errors import LabelwiseError, counted, did_you_mean, unknown_name
from labelwise.core.progress import ShowProgress, track
from labelwise.data.decode import ImageSources, find_images
from labelwise.data.images import Encoded, OnBadImage, is_image
from labelwise.engines.load import load
from labelwise.runtime.exported import ExportedModel
from labelwise.runtime.prediction import Prediction, Predictions
from labelwise.runtime.sessions import EngineName
from labelwise.runtime.tagger import Tagger

if TYPE_CHECKING:
    from labelwise.api.prediction_files import Writer
    from labelwise.api.sidecars import SidecarChange, SidecarKind, SidecarWriter
    from labelwise.jobs import JobSummary
    from labelwise.jobs.run import PartResult
    from labelwise.model.model import LabelModel
    from labelwise.training.run import Run

    AnyModel = str | Path | Run | LabelModel | Tagger | None

Runner = Literal["local", "ray"]
_FEW = 8  # images: for so few it does not matter which engine was chosen


def predict(
    images: ImageSources, model: AnyModel = None, *, progress: ShowProgress = False, **options: Any
) -> Predictions:
    """Say which labels apply to images, and how sure the model is.

    Args:
        images: A path, a pattern (`photos/*.jpg`), a folder, a URL, bytes, an open file, a PIL image, a NumPy array,
            a torch tensor, a list of these, or a pandas frame with a column of them.
        model: A run, a model folder, an exported model, a hub id, a model in memory or a `Tagger`. Default: the bundled
            tagger. To predict several times, load it once with `lw.load`.
        progress: Show a progress bar, or a callback `(description, done, total)`.
        **options: As for `lw.predict_stream`: `threshold`, `top`, `labels`, `known`, `engine`, `batch_size`,
            `on_bad_image`, and the files to write, e.g. `csv="tags.csv"`.

    Example:
        >>> import labelwise as lw
        >>> for prediction in lw.predict("photos/"):  # doctest: +SKIP
        ...     print(prediction.image, prediction.labels, prediction.scores)
    """
    known = list(signature(predict_stream).parameters)[2:]
    for name in options:
        if name not in known:
            raise unknown_name("option", name, known)
    stream = predict_stream(images, model, **options)
    predictions = Predictions(track(stream, "Predicting", stream.left, progress))
    if options.get("on_bad_image") is None:
        predictions.warn_of_errors()
    return predictions


class PredictionStream(Iterable[Prediction]):
    """Predictions that are computed while they are read; the files are complete when the last one was.

    Attributes:
        tagger: The model that predicts.
        total: How many images there are; None if they arrive while it works.
        resumed: How many of them an earlier run has written.
        names: The paths that are left to predict; None if they arrive while it works.
        changes: In a dry run, what would become of the sidecars of the images so far.
    """

    def __init__(
        self,
        tagger: Tagger,
        predictions: Iterator[Prediction],
        total: int | None,
        names: list[str] | None,
        changes: list[SidecarChange],
    ) -> None:
        self.tagger, self.total, self.names, self.changes = tagger, total, names, changes
        self.left = None if names is None else len(names)
        self.resumed = 0 if total is None or names is None else total - len(names)
        self._predictions = predictions

    def __iter__(self) -> Iterator[Prediction]:
        return self._predictions

    def __repr__(self) -> str:
        images = "images as they arrive" if self.left is None else counted(self.left, "image")
        return f"<PredictionStream: {images}, by {self.tagger!r}>"


def predict_stream(
    images: ImageSources,
    model: AnyModel = None,
    *,
    threshold: float | None = None,
    top: int | None = None,
    labels: Sequence[str] | None = None,
    known: Mapping[str, bool] | None = None,
    engine: EngineName = "auto",
    batch_size: int = 32,
    on_bad_image: OnBadImage | None = None,
    json: str | Path | None = None,
    csv: str | Path | None = None,
    sidecar: SidecarKind | None = None,
    sidecar_dir: str | Path | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    resume: bool = False,
    say: Callable[[str], None] | None = None,
) -> PredictionStream:
    """`lw.predict` one image after the other, in constant memory, with results in files on request.

    Args:
        images: As for `lw.predict`. From an iterator, images are taken as they arrive.
        model: A run, a model folder, an exported model, a hub id, a model in memory or a `Tagger`. Default: the bundled
            tagger.
        threshold: One threshold for all labels instead of the model's own.
        top: The K best labels whatever their thresholds; with `threshold`, at most K of those that reach it.
        labels: Other labels than the model was trained for, if it works on words.
        known: Labels that are known to be there or not, on all of the images: `{"person": True, "car": False}`. They
            change the scores of the others, if the model's head can use them (C-Tran).
        engine: What runs the model. `auto`: the fastest one with the same scores, measured once if there are many
            images.
        batch_size: Images per batch.
        on_bad_image: What to do about an image that cannot be decoded: `skip` gives it a prediction with an `error`,
            `error` stops. Default: skip, but stop if no image at all can be decoded.
        json: Also write a JSON list to this file, one line per image, with the scores of all labels. FILE.jsonl: only
            the lines.
        csv: Also write a table to this file: image, labels, scores. It is a manifest that can be read as data again.
        sidecar: Also write a file beside each image: json, txt (a label per line) or xmp (keywords, added to those
            that are there).
        sidecar_dir: Write sidecars below this folder instead of beside the images.
        overwrite: Replace sidecars, also those that labelwise did not write.
        dry_run: Write nothing, only show how the sidecars would change.
        resume: Leave out images that an earlier run wrote to the files.
        say: Called with one line about the engine that was chosen.

    Example:
        >>> import labelwise as lw
        >>> for prediction in lw.predict_stream("photos/", "runs/first", csv="tags.csv"):  # doctest: +SKIP
        ...     print(prediction)
    """
    require(top=(top, 1), batch_size=(batch_size, 1))
    require_choice(engine=(engine, EngineName), on_bad_image=(on_bad_image, OnBadImage))
    if (sidecar_dir or overwrite or dry_run) and sidecar is None:
        raise LabelwiseError(
            "only sidecars can be redirected, overwritten or tried; ask for them", options={"sidecar": "xmp"}
        )
    if dry_run and (json or csv):
        raise LabelwiseError("a dry run writes no files; leave json and csv out")
    if resume and not (json or csv or sidecar):
        raise LabelwiseError("there is no file to resume; name the one of the first run", options={"csv": ...})
    json_file, csv_file, folder = (None if path is None else Path(path) for path in (json, csv, sidecar_dir))
    check_targets({"json": json_file, "csv": csv_file}, images)
    # Mistakes in the paths are told before PyTorch and the model are loaded, and before anything is written.
    found: Iterable[Any] = find_images(images)
    total = None
    if not isinstance(images, Iterator):
        if on_bad_image != "skip":
            check_paths(images if isinstance(images, list | tuple) else [images])
        found = list(found)
        total = len(found)
    sidecars: SidecarWriter | None = None
    if sidecar is not None:
        from labelwise.api.sidecars import SidecarKind, SidecarWriter

        require_choice(sidecar=(sidecar, SidecarKind))
        name = short_model_name(model)
        sidecars = SidecarWriter(sidecar, folder, model=name, overwrite=overwrite, resume=resume, dry_run=dry_run)
        if total is not None:
            for image in found:
                sidecars.wants(_name(image))
    quiet = total is not None and total <= _FEW
    tagger = open_tagger(model, threshold, labels, engine, total or 0, batch_size, None if quiet else say)
    tagger.known_labels(known)  # a mistake in them is told before anything is written
    with ExitStack() as stack:
        writers: list[Writer] = [] if sidecars is None else [sidecars]
        if json_file or csv_file:
            from labelwise.api.prediction_files import CsvWriter, JsonWriter

            for file, kind in ((json_file, JsonWriter), (csv_file, CsvWriter)):
                if file:
                    writers.append(kind(file, tagger.labels, resume=resume))
                    stack.callback(writers[-1].close)
        takers: deque[list[Writer]] = deque()
        wanted: Iterable[Any] = _wanted(found, writers, takers)
        if total is not None:
            wanted = list(wanted)
        files = stack.pop_all()  # closed by the stream

    if on_bad_image is None and isinstance(wanted, list) and len(wanted) != total:
        on_bad_image = "skip"  # the earlier run could read some

    def predictions() -> Iterator[Prediction]:
        with files:
            for prediction in tagger.stream(wanted, batch_size=batch_size, on_bad_image=on_bad_image, known=known):
                if waiting := takers.popleft():
                    chosen = prediction.choose(top, threshold)
                    for writer in waiting:
                        writer.write(prediction, chosen)
                yield prediction.limited(top, threshold)

    names = [str(image) for image in wanted] if isinstance(wanted, list) else None
    rows = predictions()
    finalize(rows, files.close)  # a generator that nobody starts does not close them itself
    return PredictionStream(tagger, rows, total, names, [] if sidecars is None else sidecars.changes)


def predict_job(
    images: str | Path | Iterable[str],
    model: str | Path | Run | None = None,
    *,
    out: str | Path,
    threshold: float | None = None,
    top: int | None = None,
    labels: Sequence[str] | None = None,
    known: Mapping[str, bool] | None = None,
    engine: EngineName = "auto",
    batch_size: int = 32,
    runner: Runner = "local",
    address: str | None = None,
    workers: int | None = None,
    part_size: int = 500,
    column: str | None = None,
    all_scores: bool = False,
    listed: Iterable[str] = (),
    started: Callable[[JobSummary, int | None], None] = lambda summary, images: None,
    advanced: Callable[[PartResult], None] = lambda result: None,
    say: Callable[[str], None] | None = None,
) -> JobSummary:
    """Label millions of images into Parquet files, in parts that survive every interruption.

    Call it again with the same arguments to continue where it stopped.

    Args:
        images: Images, folders, `*.tar` shards, `*.parquet` files, or addresses such as `s3://bucket/photos`.
        model: A run, a model folder, an exported model or a hub id. Default: the bundled tagger.
        out: The folder or bucket to write to.
        threshold: One threshold for all labels instead of the model's own.
        top: The K best labels whatever their thresholds; with `threshold`, at most K of those that reach it.
        labels: Other labels than the model was trained for, if it works on words.
        known: Labels that are known to be there or not, on all of the images, as for `lw.predict_stream`.
        engine: What runs the model.
        batch_size: Images per batch.
        runner: `local` works on one part after the other in this process, `ray` on all cores or on a cluster.
        address: The Ray cluster: `auto` if this machine is part of it, or `host:6379`. Default: this machine alone.
        workers: Processes that Ray may use. Default: one per core.
        part_size: Images per part, which is what an interruption may cost. A tar shard is one part.
        column: The column of Parquet files that holds the images or their paths.
        all_scores: Also write the scores of all labels, in the order of the labels in `_job.json`.
        listed: More paths, e.g. lines of a file, which are never folders.
        started: Called with what is there already and how many images are left, if known.
        advanced: Called with each finished part.
        say: Called with one line about the engine that was chosen, and about images that changed since an earlier run.

    Example:
        >>> import labelwise as lw
        >>> lw.predict_job(["shards/{000..099}.tar"], out="tags/", runner="ray")  # doctest: +SKIP
    """
    given = locals()
    from labelwise.jobs import JobSettings, find_parts, run_job

    require_choice(engine=(engine, EngineName), runner=(runner, Runner))
    if (address or workers) and runner != "ray":
        raise LabelwiseError("only Ray has an address and workers", options={"runner": "ray"})
    require(top=(top, 1), batch_size=(batch_size, 1), workers=(workers, 1))
    settings = JobSettings(**{name: value for name, value in given.items() if name in JobSettings.model_fields})
    sources = [os.fspath(images)] if isinstance(images, str | Path) else images
    parts = find_parts(sources, listed=listed, part_size=part_size, column=column)
    return run_job(
        model_path(model),
        parts,
        os.fspath(out),
        settings,
        runner=runner,
        address=address,
        workers=workers,
        started=started,
        advanced=advanced,
        say=say,
    )


def open_tagger(
    model: AnyModel,
    threshold: float | None = None,
    labels: Sequence[str] | None = None,
    engine: EngineName | None = None,
    images: int = 0,
    batch_size: int = 32,
    say: Callable[[str], None] | None = None,
) -> Tagger:
    """A tagger of whatever names or is a model. In memory, only an engine that is named replaces the model itself."""
    if isinstance(model, Tagger):
        if labels is not None or threshold is not None or engine not in (None, "auto"):
            raise LabelwiseError("a loaded tagger keeps its labels, threshold and engine; give them to lw.load")
        return model
    if isinstance(model, ExportedModel):
        if labels is not None:
            raise LabelwiseError("the labels of an exported model are fixed; load the model that it was made from")
        return Tagger(model if engine in (None, "auto") else model.open(engine), threshold=threshold)
    if model is not None and not isinstance(model, str | os.PathLike):  # in memory
        network: Any = model if labels is None else model.with_labels(labels)
        if engine in (None, "auto"):
            return Tagger(network, threshold=threshold)
        from labelwise.engines.choose import open_engine

        runner = open_engine(engine, network, size=network.config.preprocessing.size, batch_size=batch_size)
        return Tagger(network, engine=runner, threshold=threshold)
    return load(
        model_path(model),
        threshold=threshold,
        engine=engine,
        labels=labels,
        images=images,
        batch_size=batch_size,
        say=say,
    )


def short_model_name(model: AnyModel) -> str:
    """What files call a model; of a path from the root only the end, because they leave this machine.

    >>> short_model_name(None), short_model_name("runs/first"), short_model_name("/home/anna/runs/first")
    ('the bundled tagger', 'runs/first', 'runs/first')
    """
    name = model_name(model.model if isinstance(model, Tagger) else model)
    if name == str(default_model()):
        return model_name(None)
    return os.path.join(*Path(name).parts[-2:]) if os.path.isabs(name) else name


def _name(image: Any) -> str:
    if isinstance(image, Encoded):
        return image.name
    if not isinstance(image, str | Path):
        raise LabelwiseError("results can be written to files only for images that have a name: give paths")
    return str(image)


def check_paths(paths: Iterable[Any]) -> None:
    """An error for the first path that leads nowhere; patterns and URLs are looked up when they are opened."""
    for path in paths:
        name = str(path) if isinstance(path, str | Path) else ""
        if name and not os.path.exists(os.path.expanduser(name)) and "://" not in name and not glob.has_magic(name):
            raise LabelwiseError(f"no such file or folder: {name!r}{did_you_mean(name)}")


def check_targets(targets: Mapping[str, Path | None], images: ImageSources) -> None:
    """A file that is read, or any image, must not become a table by a slip in the call."""
    several = images if isinstance(images, list | tuple) else [images]
    taken = {os.path.realpath(path): f"{str(path)!r} is an input" for path in several if isinstance(path, str | Path)}
    for option, target in targets.items():
        if target is None:
            continue
        path = os.path.realpath(target)
        reason = f"{str(target)!r} is the name of an image" if is_image(target.name) else taken.get(path)
        if reason is not None:
            raise LabelwiseError(f"cannot write the {option} file: {reason}; name another file")
        taken[path] = f"{str(target)!r} is already the {option} file"


def _wanted(images: Iterable[Any], writers: Sequence[Writer], takers: deque[list[Writer]]) -> Iterator[Any]:
    """The images that some writer does not have yet; `takers` holds which ones, in the same order."""
    for image in images:
        wanting = [writer for writer in writers if writer.wants(_name(image))]
        if wanting or not writers:
            takers.append(wanting)
            yield image
