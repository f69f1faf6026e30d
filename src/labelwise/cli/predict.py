"""`labelwise predict`: labels for pictures and folders of pictures, on the terminal and in files."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.progress import Progress

from labelwise.cli.large_job import JobOptions, run_job
from labelwise.cli.model_argument import model_and_rest
from labelwise.cli.path_lists import read_paths
from labelwise.cli.prediction_files import CsvWriter, JsonWriter, Writer
from labelwise.cli.prediction_line import describe
from labelwise.cli.progress import FEW, picture_progress
from labelwise.cli.say import say
from labelwise.cli.sidecars import SidecarWriter
from labelwise.data.readers.base import is_image
from labelwise.errors import LabelwiseError
from labelwise.pictures import find_images

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
    from labelwise.tagger import load

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
