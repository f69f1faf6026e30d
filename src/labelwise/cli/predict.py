"""`labelwise predict`: labels for pictures and folders of pictures, on the terminal and in files."""

from __future__ import annotations

import glob
import os
import re
import sys
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.progress import Progress

from labelwise.cli.common import say
from labelwise.cli.jobs import JobOptions, run_job
from labelwise.cli.prediction_files import CsvWriter, JsonWriter, SidecarWriter, Writer
from labelwise.core.errors import LabelwiseError
from labelwise.core.progress import FEW, picture_progress
from labelwise.data.decode import file_kind, find_images, walk
from labelwise.data.images import is_image

if TYPE_CHECKING:
    from labelwise.runtime.prediction import Prediction

_CONFIG = "config.json"  # in a model folder and in an exported one; a run folder has it in model/
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def model_and_rest(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The model, and the arguments behind it; the bundled tagger and all arguments if the first one is no model."""
    if arguments and is_model(arguments[0]):
        return arguments[0], list(arguments[1:])
    from labelwise.bundled import default_model

    return str(default_model()), list(arguments)


def is_model(argument: str) -> bool:
    """True for a run, model or exported folder and for a hub id; False for pictures. What is neither is an error.

    >>> is_model("owner/name"), is_model("s3://bucket/photos"), is_model("shards/{000..099}.tar")
    (True, False, False)
    """
    path = Path(argument)
    if path.is_dir():
        if (path / _CONFIG).is_file() or (path / "model" / _CONFIG).is_file():
            return True
        if _holds_pictures(path):
            return False
        raise LabelwiseError(
            f"the folder {argument!r} is neither a model ({_CONFIG} or model/{_CONFIG} would be in it) nor does it "
            "hold images; name a run folder, a model folder, an exported model or a hub id, or a folder of pictures"
        )
    is_pattern = glob.has_magic(argument) or "{" in argument
    if path.exists() or "://" in argument or is_pattern or file_kind(argument) in ("shard", "parquet"):
        return False  # opening it says what is wrong with it, if anything is
    if is_image(path.name):  # a misspelt picture must not be looked for on the hub
        raise LabelwiseError(f"no such file: {argument!r}")
    if _HUB_ID.fullmatch(argument):
        return True
    raise LabelwiseError(
        f"no such file or folder: {argument!r}; the first argument is a picture, a folder, or a model: a run folder, "
        "a model folder, an exported model or a hub id like 'owner/name'"
    )


def _holds_pictures(folder: Path) -> bool:
    """Some file below can be predicted; the walk ends at the first one."""
    return any(file_kind(name) for _, names in walk(str(folder)) for name in names)


_CHUNK = 1 << 16


def read_paths(source: str, *, null: bool = False) -> Iterator[str]:
    """The paths in file `source`, or from stdin if that is `-`: one per line, or with `null` each ended by a NUL byte
    as `find -print0` does. A path is given as soon as it has arrived."""
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


_NEAR = 0.6  # of its threshold: a label that comes this close is shown as a near miss
_NEAR_SHOWN = 3
_TINY = 1e-30  # a score of 0 is the furthest away


def describe(prediction: Prediction, labels: dict[str, float], *, near_misses: bool, width: int = 0) -> str:
    """`photo.jpg   dog 0.98   person 0.91   (sofa 0.34, below its threshold 0.52)`"""
    said = [f"{label} {score:.2f}" for label, score in labels.items()] or ["no label"]
    if near_misses:
        said += _near_misses(prediction)
    return "   ".join([str(prediction.image).ljust(width), *said])


def _near_misses(prediction: Prediction) -> list[str]:
    thresholds, named = prediction.thresholds, set(prediction.labels)
    below = [(label, score) for label, score in prediction.all_scores.items() if label not in named]
    near = [(label, score) for label, score in below if score >= _NEAR * thresholds[label]][:_NEAR_SHOWN]
    if not named:  # say at least what came nearest
        near = near or sorted(below, key=lambda entry: thresholds[entry[0]] / max(entry[1], _TINY))[:1]
    texts = [_both(score, thresholds[label]) for label, score in near]
    if len(near) == 1:
        return [f"({near[0][0]} {texts[0][0]}, below its threshold {texts[0][1]})"]
    several = ", ".join(f"{label} {score} < {limit}" for (label, _), (score, limit) in zip(near, texts, strict=True))
    return [f"(below their thresholds: {several})"] if near else []


def _both(score: float, threshold: float) -> tuple[str, str]:
    """With as many digits as it takes to see that they differ.

    >>> _both(0.34, 0.52), _both(0.5196, 0.5204)
    (('0.34', '0.52'), ('0.5196', '0.5204'))
    """
    digits = 2 if f"{score:.2f}" != f"{threshold:.2f}" else 4
    return f"{score:.{digits}f}", f"{threshold:.{digits}f}"


_WIDEST_NAME = 60  # characters: longer paths do not push the labels of all others to the right
_NO_JOB = JobOptions()


def predict(
    model: str | None = None,
    /,
    *paths: str,
    top: int | None = None,
    threshold: float | None = None,
    labels: str | None = None,
    engine: Literal["auto", "torch", "onnxruntime", "openvino"] = "auto",
    batch_size: int = 32,
    on_bad_image: Literal["error", "skip"] = "error",
    stdin: Annotated[bool, Parameter("-", negative=())] = False,
    from_file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    null: Annotated[bool, Parameter(("--null", "-0"), negative=())] = False,
    json_file: Annotated[Path | None, Parameter("--json")] = None,
    csv_file: Annotated[Path | None, Parameter("--csv")] = None,
    sidecar: Literal["json", "txt", "xmp"] | None = None,
    sidecar_dir: Path | None = None,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
    resume: Annotated[bool, Parameter(negative=())] = False,
    job: JobOptions = _NO_JOB,
) -> None:
    """Say which labels apply to each picture, and how sure the model is.

    Parameters
    ----------
    model
        A run folder, a model folder, an exported model or a hub id. Left out, the tagger that comes with labelwise.
    paths
        Pictures, or folders that are searched for pictures with all folders in them.
    top
        The K best labels whatever their thresholds; with --threshold, at most K of those that reach it.
    threshold
        One threshold for all labels instead of the model's own.
    labels
        Other labels than the model was trained for, separated by commas, if it works on words.
    engine
        What runs the model. auto: an exported model's own; of others the fastest that gives the same scores, measured
        once if there are many pictures, else torch.
    batch_size
        Pictures that go through the model at once.
    on_bad_image
        A picture that cannot be decoded is an error, or is skipped and named on stderr.
    stdin
        Also the paths that come on stdin, one per line.
    from_file
        Also the paths in this file, one per line; - is stdin.
    null
        Paths in lists end with a NUL byte, as find -print0 writes them.
    json_file
        Also write a JSON list into this file, one line for each picture, with the scores of all labels. A name that
        ends in .jsonl: the lines alone.
    csv_file
        Also write a table into this file: image, labels, scores. It is a manifest that --data reads.
    sidecar
        Also write a file beside each picture: photo.jpg.json, photo.txt (a label per line), or photo.xmp (keywords
        that photo managers read).
    sidecar_dir
        Write sidecars below this folder instead of beside the pictures.
    overwrite
        Replace sidecars, also those that labelwise did not write.
    resume
        Leave out pictures that an earlier run wrote into the files, and go on with the others.
    """
    chosen_model, sources = model_and_rest([*([] if model is None else [model]), *paths])
    path_list = "-" if stdin else from_file
    for option, value in (("top", top), ("batch-size", batch_size)):
        if value is not None and value < 1:
            raise LabelwiseError(f"--{option} {value}: give 1 or more")
    if stdin and from_file not in (None, "-"):
        raise LabelwiseError("paths come from stdin (-) or from a file (--from-file), not from both")
    if not sources and path_list is None:
        named = "the bundled tagger" if model is None else repr(chosen_model)
        raise LabelwiseError(f"say which pictures {named} is to label: name files or folders, or - for stdin")
    names = None if labels is None else [name.strip() for name in labels.split(",") if name.strip()]
    listed = () if path_list is None else read_paths(path_list, null=null)
    if job.given:
        if json_file or csv_file or sidecar or resume or sidecar_dir or overwrite:
            raise LabelwiseError(
                "--out writes Parquet and always resumes: leave out --json, --csv, --sidecar, --resume, --overwrite"
            )
        run_job(
            job,
            chosen_model,
            sources,
            listed,
            top=top,
            threshold=threshold,
            labels=names,
            engine=engine,
            batch_size=batch_size,
        )
        return
    if (sidecar_dir or overwrite) and sidecar is None:
        raise LabelwiseError("--sidecar-dir and --overwrite are about sidecars: add --sidecar json, txt or xmp")
    if resume and not (json_file or csv_file or sidecar):
        raise LabelwiseError("--resume goes on with a file: add --json, --csv or --sidecar as in the first run")
    # Mistakes in the paths are told before PyTorch and the model are loaded.
    missing = next((path for path in sources if not os.path.exists(path)), None)
    if missing is not None:
        raise LabelwiseError(f"no such file or folder: {missing!r}")
    _check_targets({"--json": json_file, "--csv": csv_file}, [*sources, *([from_file] if from_file else [])])
    from labelwise.engines.load import load

    pictures: Iterable[str] = map(str, find_images(chain(sources, listed)))
    count: int | None = None
    if path_list is None:  # else they come while we work, and how many there will be nobody knows
        pictures = list(pictures)
        count = len(pictures)
    sidecars = SidecarWriter(sidecar, sidecar_dir, overwrite=overwrite, resume=resume) if sidecar else None
    if sidecars is not None and count is not None:
        for picture in pictures:  # one that may not be replaced is told now, while nothing is written or emptied
            sidecars.wants(picture)
    tagger = load(
        chosen_model,
        threshold=threshold,
        engine=engine,
        labels=names,
        images=count or 0,
        batch_size=batch_size,
        say=(lambda text: say(text, stderr=True)) if count is None or count > FEW else None,
    )
    writers: list[Writer] = []
    with ExitStack() as files:
        if json_file:
            writers.append(JsonWriter(json_file, tagger.labels, resume=resume))
            files.callback(writers[-1].close)
        if csv_file:
            writers.append(CsvWriter(csv_file, tagger.labels, resume=resume))
            files.callback(writers[-1].close)
        if sidecars is not None:
            writers.append(sidecars)
        takers: deque[list[Writer]] = deque()
        wanted: Iterable[str] = _wanted(pictures, writers, takers)
        if count is not None:  # the bar shows how many of them are there already
            wanted = list(wanted)
        predictions = tagger.stream(wanted, batch_size=batch_size, on_bad_image=on_bad_image)
        near_misses = top is None and tagger.config.task == "multi-label"
        done = skipped = 0
        with _progress(wanted, count) as (progress, width):
            for prediction in predictions:
                chosen = prediction.choose(top, threshold)
                if prediction.error:
                    skipped += 1
                    say(f"skipped: {prediction.error}", stderr=True)
                else:
                    say(describe(prediction, chosen, near_misses=near_misses, width=width))
                for writer in takers.popleft():
                    writer.write(prediction, chosen)
                progress.advance(progress.task_ids[0])
                done += 1
    if skipped:
        say(f"{skipped} of {done} pictures were skipped", stderr=True)


def _check_targets(targets: dict[str, Path | None], inputs: Sequence[str]) -> None:
    """A file that is read, or any picture, must not become a table by a slip in the command."""
    taken = {os.path.realpath(path): f"{path!r} is read" for path in inputs}
    for option, target in targets.items():
        if target is None:
            continue
        place = os.path.realpath(target)
        reason = f"{str(target)!r} is a picture's name" if is_image(target.name) else taken.get(place)
        if reason is not None:
            raise LabelwiseError(f"{option} would replace what it must not: {reason}; name another file to write")
        taken[place] = f"{str(target)!r} is written by {option}, too"


def _wanted(pictures: Iterable[str], writers: Sequence[Writer], takers: deque[list[Writer]]) -> Iterator[str]:
    """The pictures that some writer has not got yet; `takers` holds which ones, in the same order."""
    for picture in pictures:
        wanting = [writer for writer in writers if writer.wants(picture)]
        if wanting or not writers:
            takers.append(wanting)
            yield picture


@contextmanager
def _progress(wanted: Iterable[str], count: int | None) -> Iterator[tuple[Progress, int]]:
    """The bar, and how wide the names are. Where the number of pictures is known, some may be there already."""
    width, there = 0, 0
    if count is not None and isinstance(wanted, list):
        width = max((len(picture) for picture in wanted if len(picture) <= _WIDEST_NAME), default=0)
        there = count - len(wanted)
    if there:
        say(f"resumed: {there} of {count} pictures are there already", stderr=True)
    with picture_progress(count, there) as progress:
        yield progress, width
