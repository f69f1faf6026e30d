"""`labelwise predict`: labels for images and folders of images, on the terminal and in files."""

from __future__ import annotations

import glob
import os
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from cyclopts import Parameter

import labelwise as lw
from labelwise.cli.common import (
    AtLeastOne,
    BatchSize,
    Engine,
    FileName,
    Flag,
    Model,
    described_by,
    note,
    say,
    split_names,
)
from labelwise.cli.jobs import JobOptions, run_job
from labelwise.core.errors import LabelwiseError, counted, did_you_mean
from labelwise.core.progress import progress_of
from labelwise.core.terminal import visible
from labelwise.data.decode import file_kind, walk
from labelwise.data.images import is_image
from labelwise.runtime.exported import CONFIG, is_hub_id
from labelwise.runtime.prediction import Prediction, known_from
from labelwise.runtime.run_files import MODEL, RECIPE, settle

_WIDEST_NAME = 60  # characters: longer paths do not push the labels of all others to the right
_FEW = 8  # images that need no progress bar
_NO_JOB = JobOptions()


@described_by("api.prediction:predict_stream")
def predict(
    model: Model = None,
    /,
    *paths: FileName,
    top: Annotated[int | None, AtLeastOne] = None,
    threshold: float | None = None,
    labels: str | None = None,
    known: str | None = None,
    known_absent: str | None = None,
    engine: Engine = "auto",
    batch_size: BatchSize = 32,
    on_bad_image: Literal["error", "skip"] | None = None,
    strict: Flag = False,
    stdin: Annotated[bool, Parameter("-", negative=(), show_default=False)] = False,
    from_file: Annotated[FileName | None, Parameter(allow_leading_hyphen=True)] = None,
    null: Annotated[bool, Parameter(("--null", "-0"), negative=(), show_default=False)] = False,
    json: Path | None = None,
    csv: Path | None = None,
    sidecar: Literal["json", "txt", "xmp"] | None = None,
    sidecar_dir: Path | None = None,
    overwrite: Flag = False,
    dry_run: Flag = False,
    resume: Flag = False,
    job: JobOptions = _NO_JOB,
) -> None:
    """Say which labels apply to each image, and how sure the model is.

    Parameters
    ----------
    labels
        Other labels than the model was trained for, separated by commas, if it works on words.
    known
        Labels that are known to be on the images, separated by commas: they change the scores of the others, if the
        model's head can use them (C-Tran).
    known_absent
        Labels that are known not to be on the images, separated by commas.
    strict
        Stop at the first image that cannot be decoded, as with --on-bad-image error.
    paths
        Images, patterns, URLs, or folders, which are searched recursively.
    stdin
        Also read paths from stdin, one per line.
    from_file
        Also read paths from this file, one per line; - is stdin.
    null
        Paths in lists end with a NUL byte, as find -print0 writes them.
    """
    chosen_model, sources = model_and_rest([*([] if model is None else [model]), *paths])
    path_list = "-" if stdin else from_file
    if stdin and from_file not in (None, "-"):
        raise LabelwiseError("paths come from stdin (-) or from a file (--from-file), not from both")
    if not sources and path_list is None:
        named = "the bundled tagger" if model is None else repr(chosen_model)
        raise LabelwiseError(f"no images given for {named}: name files or folders after the model, or - for stdin")
    choices: dict[str, Any] = {
        "threshold": threshold,
        "top": top,
        "labels": split_names(labels),
        "known": known_from(split_names(known), split_names(known_absent)),
        "engine": engine,
        "batch_size": batch_size,
    }
    listed = () if path_list is None else read_paths(path_list, null=null)
    if job.given:
        if json or csv or sidecar or resume or sidecar_dir or overwrite or dry_run or strict or on_bad_image:
            raise LabelwiseError(
                "--out writes Parquet, always resumes and lists bad images: leave out --json, --csv, --sidecar, "
                "--resume, --overwrite, --dry-run, --strict, --on-bad-image"
            )
        run_job(job, chosen_model, sources, listed, **choices)
        return
    from labelwise.api.prediction import check_paths, check_targets

    if path_list is not None:  # what a function that gets an iterator cannot see
        check_paths(sources)
        check_targets({"json": json, "csv": csv}, [*sources, *([from_file] if from_file else [])])
    stream = lw.predict_stream(
        sources if path_list is None else chain(sources, listed),
        chosen_model,
        **choices,
        on_bad_image="error" if strict else on_bad_image,
        json=json,
        csv=csv,
        sidecar=sidecar,
        sidecar_dir=sidecar_dir,
        overwrite=overwrite,
        dry_run=dry_run,
        resume=resume,
        say=note,
    )
    if stream.resumed:
        note(f"resumed: {stream.resumed} of {counted(stream.total or 0, 'image')} done already")
    width = max((len(name) for name in stream.names or () if len(name) <= _WIDEST_NAME), default=0)
    near_misses = top is None and stream.tagger.config.task == "multi-label"
    done = skipped = changed = 0
    shown = stream.total is None or stream.total > _FEW
    with progress_of("Predicting", stream.total, shown, done=stream.resumed) as advance:
        for prediction in stream:
            if prediction.error:
                skipped += 1
                note(f"skipped: {prediction.error}")
            elif stream.changes:
                change = stream.changes.pop()
                changed += change.old != change.new
                say(str(change))
            else:
                say(describe(prediction, prediction.choose(top, threshold), near_misses=near_misses, width=width))
            advance()
            done += 1
    if skipped:
        note(f"{skipped} of {counted(done, 'image')} skipped")
    if dry_run:
        note(f"{changed} of {counted(done - skipped, 'sidecar')} would change; nothing was written")


# ---- Which argument is the model


def model_and_rest(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The model and the other arguments; the bundled tagger and all arguments if the first one is not a model."""
    if arguments and is_model(arguments[0]):
        return arguments[0], list(arguments[1:])
    from labelwise.bundled import default_model

    return str(default_model()), list(arguments)


def is_model(argument: str) -> bool:
    """True for a run, model or exported folder and for a hub id; False for images. Anything else is an error.

    >>> is_model("owner/name"), is_model("s3://bucket/photos"), is_model("clip:ViT-B-32/openai")
    (True, False, True)
    """
    if argument.startswith("clip:"):
        return True
    path = Path(argument)
    if path.is_dir():
        settle(path)
        if (path / CONFIG).is_file() or (path / MODEL / CONFIG).is_file():
            return True
        if any(file_kind(name) for _, names in walk(str(path)) for name in names):  # ends at the first image
            return False
        if (path / RECIPE).is_file():
            return True  # opening it says that its training is not finished
        raise LabelwiseError(
            f"the folder {argument!r} is neither a model (it has no {CONFIG} or model/{CONFIG}) nor does it hold "
            "images; name a run folder, a model folder, an exported model or a hub id, or a folder of images"
        )
    if path.suffix in (".pth", ".pt", ".pkl", ".ckpt", ".safetensors"):
        return True  # loading it says how to make a model of it
    is_pattern = glob.has_magic(argument) or "{" in argument
    if path.exists() or "://" in argument or is_pattern or file_kind(argument) in ("shard", "parquet"):
        return False  # opening it says what is wrong with it, if anything is
    if is_hub_id(argument):
        return True
    said = f"no such file or folder: {argument!r}{did_you_mean(path)}"
    if said.endswith("?") or is_image(path.name):
        raise LabelwiseError(said)
    raise LabelwiseError(
        f"{said}; the first argument is an image, a folder, or a model: a run folder, a model folder, an exported "
        "model or a hub id like 'owner/name'"
    )


# ---- Lists of paths

_CHUNK = 1 << 16


def read_paths(source: str, *, null: bool = False) -> Iterator[str]:
    """The paths in a file, or from stdin if `source` is `-`: one per line, or with `null` each ended by a NUL byte as
    `find -print0` does. A path is given as soon as it has arrived."""
    with nullcontext(sys.stdin.buffer) if source == "-" else open(source, "rb") as file:
        for number, entry in enumerate(split_paths(file, b"\0" if null else b"\n")):
            if not null:
                entry = entry.removesuffix(b"\r")
            if number == 0:
                entry = entry.removeprefix(BOM_UTF8)  # some editors write it
            if entry:
                yield os.fsdecode(entry)  # names that are not UTF-8 find their files, too


def split_paths(file: IO[bytes], end: bytes) -> Iterator[bytes]:
    r"""
    >>> from io import BytesIO
    >>> list(split_paths(BytesIO(b"a b.jpg\0c\nd.jpg\0"), b"\0"))
    [b'a b.jpg', b'c\nd.jpg', b'']
    """
    read = getattr(file, "read1", file.read)  # what has arrived, instead of waiting until the chunk is full
    rest = b""
    while chunk := read(_CHUNK):
        *complete, rest = (rest + chunk).split(end)
        yield from complete
    yield rest


# ---- A prediction as a line

_NEAR = 0.6  # of its threshold: a label that comes this close is shown as a near miss
_NEAR_SHOWN = 3
_TINY = 1e-30  # a score of 0 is the furthest away


def describe(prediction: Prediction, labels: dict[str, float], *, near_misses: bool, width: int = 0) -> str:
    """`photo.jpg   dog 0.98   person 0.91   (sofa 0.34, below its threshold 0.52)`"""
    said = [f"{visible(label)} {score:.2f}" for label, score in labels.items()] or ["no label"]
    if near_misses:
        said += _near_misses(prediction)
    return "   ".join([visible(str(prediction.image)).ljust(width), *said])


def _near_misses(prediction: Prediction) -> list[str]:
    thresholds, named = prediction.thresholds, set(prediction.labels)
    below = [(label, score) for label, score in prediction.all_scores.items() if label not in named]
    near = [(label, score) for label, score in below if score >= _NEAR * thresholds[label]][:_NEAR_SHOWN]
    if not named:  # at least the label that came nearest
        near = near or sorted(below, key=lambda entry: thresholds[entry[0]] / max(entry[1], _TINY))[:1]
    texts = [_both(score, thresholds[label]) for label, score in near]
    if len(near) == 1:
        return [f"({visible(near[0][0])} {texts[0][0]}, below its threshold {texts[0][1]})"]
    several = ", ".join(
        f"{visible(label)} {score} < {bound}" for (label, _), (score, bound) in zip(near, texts, strict=True)
    )
    return [f"(below their thresholds: {several})"] if near else []


def _both(score: float, threshold: float) -> tuple[str, str]:
    """With as many digits as it takes to see that they differ.

    >>> _both(0.34, 0.52), _both(0.5196, 0.5204)
    (('0.34', '0.52'), ('0.5196', '0.5204'))
    """
    digits = 2 if f"{score:.2f}" != f"{threshold:.2f}" else 4
    return f"{score:.{digits}f}", f"{threshold:.{digits}f}"
