"""A training run on disk: its recipe, history, splits, gates and model, and who may write to its folder."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labelwise.core.arrays import Floats, Targets
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import sha256
from labelwise.core.tables import html_table, to_frame
from labelwise.data.sources import read_data
from labelwise.data.stream_table import AnyTable, StreamTable
from labelwise.data.table import LabelTable
from labelwise.model.folder import read_config
from labelwise.runtime.folder import WEIGHTS, find_folder, network_folder
from labelwise.runtime.run_files import (
    CHECKPOINTS,
    GATES,
    HELD_OUT,
    HISTORY,
    LOG,
    MODEL,
    RECIPE,
    REFIT,
    SPLITS,
    locked,
    replacing,
    restore,
    run_candidates,
    set_aside,
)
from labelwise.training.recipe import Recipe, run_recipe

if TYPE_CHECKING:
    import pandas

    from labelwise.model.model import LabelModel

_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")  # how a line of `display.Display` begins


class History(list[dict[str, Any]]):
    """One entry per finished epoch: loss, learning rate, validation metrics, speed."""

    def to_pandas(self) -> pandas.DataFrame:
        """A frame with one row per epoch."""
        return to_frame(self, "epoch")

    def _repr_html_(self) -> str:
        columns = list(dict.fromkeys(name for entry in self for name in entry))
        return html_table(columns, ([entry.get(name) for name in columns] for entry in self))


class Run(os.PathLike[str]):
    """A finished training run, or a model folder or hub id without one. Opening it reads no weights.

    Args:
        source: A run folder, its model folder, any other model folder or a hub id.
        name: For people; the folder's name by default.

    Attributes:
        folder: The run folder; None for a model without one.
        model_folder: The folder with the weights.
        config: The model's config: labels, thresholds, head, backbone, preprocessing.
        recipe: Everything that decided the training; None for a model without its run.
        history: One entry per finished epoch; `history.to_pandas()` is a frame.

    Example:
        >>> run = Run("runs/first")  # doctest: +SKIP
        >>> run  # doctest: +SKIP
        Run('runs/first', head='hsq', backbone='tf_efficientnet_lite2', labels=13, epochs=8, mAP=81.25)
        >>> run.model().labels, run.history.to_pandas(), lw.evaluate(run, split="test")  # doctest: +SKIP
    """

    def __init__(self, source: str | Path, name: str | None = None) -> None:
        self.source = str(source)
        self.model_folder = network_folder(find_folder(source))
        if not (self.model_folder / WEIGHTS).is_file():
            raise LabelwiseError(f"{self.source!r} has no {WEIGHTS}: finish its training, or copy the whole folder")
        self.config = read_config(self.model_folder)
        parent = self.model_folder.parent
        is_run = self.model_folder.name == MODEL and (parent / RECIPE).is_file()
        self.folder: Path | None = parent if is_run else None
        self.recipe: Recipe | None = run_recipe(parent) if is_run else None
        self.history = read_history(parent) if is_run else History()
        self.name = name or (self.folder.resolve().name if self.folder is not None else self.source)

    def __fspath__(self) -> str:
        """A run stands for its folder wherever a path is expected: `lw.load(run)`."""
        return str(self.folder or self.model_folder)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.labels

    @property
    def head(self) -> str:
        """The preset's name if a recipe tells it, else the kind of head."""
        return self.recipe.model.head if self.recipe is not None else self.config.head.kind

    @property
    def frozen(self) -> bool:
        """Whether the backbone was frozen, so that its features are cached."""
        return self.recipe is not None and self.recipe.model.freeze == "backbone"

    @property
    def refitted(self) -> bool:
        """Whether it was refitted on its validation images."""
        return self.folder is not None and (self.folder / REFIT).is_dir()

    def learned_from(self, data: object, split: str, table: AnyTable) -> bool:
        """Whether it learned from images of `table`, a split of `data` (None: its own data)."""
        if self.recipe is not None and (data is None or str(data) == self.recipe.data.source):
            own = self.recipe.data
            learned = f"{own.train}+{own.validation}" if self.refitted else own.train
            return bool({*split.split("+")} & {*learned.split("+"), "all"})
        return self.held_out(table) is not None

    def held_out(self, table: AnyTable) -> tuple[Floats, Targets] | None:
        """Logits and targets [M, N] of the validation images, from before a refitted run learned from them; None if
        `table` has other images."""
        from labelwise.model.tensors import load_tensors

        if not self.refitted or self.folder is None or not (file := self.folder / REFIT / HELD_OUT).exists():
            return None
        tensors, about = load_tensors(file)
        if about["images"] != images_key(table):
            return None
        return tensors["logits"].numpy(), tensors["targets"].numpy()

    @property
    def results(self) -> dict[str, Any]:
        """Validation metrics of the saved weights, in percent, and the data they were measured on."""
        return self.config.results

    def model(self) -> LabelModel:
        """Load the trained model, on the CPU and in evaluation mode."""
        from labelwise.model.model import load_model

        return load_model(self.model_folder)

    def with_splits(self, table: LabelTable) -> LabelTable:
        """`table` with the splits that the training made, if it has none of its own."""
        return with_splits_of_run(table, self.folder)

    def gates(self) -> list[tuple[int, NDArray[np.float32]]]:
        """(epoch, mean gate weights [layers, K, n_t + n_s]) of every epoch; empty for a head without gates."""
        return [] if self.folder is None else read_gates(self.folder)

    def __repr__(self) -> str:
        return f"Run({self.source!r}, {', '.join(f'{name}={value!r}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        return html_table(["run", self.source], self._facts().items())

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {
            "head": self.head,
            "backbone": self.config.backbone.name,
            "labels": len(self.labels),
        }
        if self.history:
            facts["epochs"] = len(self.history)
        return facts | {k: round(self.results[k], 2) for k in ("accuracy_top1", "mAP") if k in self.results}


def images_key(table: AnyTable) -> str:
    """The same for the same images, however their paths are written."""
    names = [table.fingerprint] if isinstance(table, StreamTable) else sorted(map(os.path.realpath, table.images))
    return sha256("\n".join(names)).hexdigest()


def open_runs(sources: Sequence[str | Path]) -> list[Run]:
    """Each run folder, model folder or hub id once, in order, with names that differ."""
    if not sources:
        raise LabelwiseError("name at least one run")
    runs: dict[Path, Run] = {}
    for source in sources:
        run = Run(source)
        runs.setdefault(run.model_folder.resolve(), run)
    names = short_names([str(run.folder.resolve()) if run.folder else run.source for run in runs.values()])
    for run, name in zip(runs.values(), names, strict=True):
        run.name = name
    return list(runs.values())


def find_run(source: str | Path) -> Path | None:
    """The run folder that `source` is or lies in; None for a model that stands alone and for a hub id."""
    return next((folder for folder in run_candidates(source) if (folder / RECIPE).is_file()), None)


def short_names(paths: Sequence[str]) -> list[str]:
    """The last part of each path, or as many parts as it takes until all names differ.

    >>> short_names(["runs/hsq", "runs/gap"]), short_names(["a/seed-0/hsq", "a/seed-1/hsq", "gap"])
    (['hsq', 'gap'], ['seed-0/hsq', 'seed-1/hsq', 'gap'])
    """
    parts = [[part for part in path.replace("\\", "/").split("/") if part] or [path] for path in paths]
    lengths = [1] * len(parts)
    while True:
        names = ["/".join(part[-length:]) for part, length in zip(parts, lengths, strict=True)]
        ambiguous = {name for name, times in Counter(names).items() if times > 1}
        longer = [n for n, name in enumerate(names) if name in ambiguous and lengths[n] < len(parts[n])]
        if not longer:
            return names
        for n in longer:
            lengths[n] += 1


# What a run folder holds beside the model.


def read_history(folder: Path) -> History:
    """The finished epochs; a last line that was cut off by a power failure does not count."""
    path, entries = folder / HISTORY, History()
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            break
        if isinstance(entry, dict) and isinstance(entry.get("epoch"), int):
            entries.append(entry)
    return entries


def with_splits_of_run(table: LabelTable, *sources: str | Path | None) -> LabelTable:
    """A table without splits gets those that a training made: of the first of the runs (or models, in a run folder)
    that has any. The runs of a sweep share the splits in the sweep's folder."""
    if table.split_names != ("",):
        return table
    candidates = [folder / SPLITS for source in sources if source for folder in run_candidates(source)]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        return table
    written = read_data(path, check_files="no")
    split_of = {os.path.realpath(image): split for image, split in zip(written.images, written.splits, strict=True)}
    return table.with_splits([split_of.get(os.path.realpath(image), "") for image in table.images])


def write_gates(folder: Path, epoch: int, weights: NDArray[np.floating]) -> None:
    """Store the mean gate weights [layers, K, n_t + n_s] after an epoch; a resumed run writes the same file again."""
    (folder / GATES).mkdir(exist_ok=True)
    np.save(folder / GATES / f"{epoch:04}.npy", weights.astype(np.float32), allow_pickle=False)


def read_gates(folder: Path) -> list[tuple[int, NDArray[np.float32]]]:
    """The stored gates of every finished epoch; a killed run may also have those of an unfinished one.

    Empty for a head without gates, and for a training without validation images.
    """
    epochs = [entry["epoch"] for entry in read_history(folder)] if (folder / GATES).is_dir() else []
    try:
        return [(epoch, np.load(folder / GATES / f"{epoch:04}.npy", allow_pickle=False)) for epoch in epochs]
    except (OSError, ValueError, EOFError) as error:
        raise LabelwiseError(f"{str(folder)!r}: its recorded gates cannot be read ({error})") from None


# Who may write to a run folder.


@contextmanager
def run_folder(folder: Path, resume: bool, overwrite: bool, patience: float = 1.0) -> Iterator[None]:
    """Create `folder` if needed, check that it is free and lock it: two trainings would spoil each other's checkpoints.

    With `overwrite`, the run that is there is set aside; it comes back if the new one ends without a checkpoint.
    `patience`: how many seconds another process may keep its lock.
    """
    check_folder(folder, resume, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, patience))
        except BlockingIOError:
            raise LabelwiseError(
                f"another process is training in {str(folder)!r}; wait for it, stop it, or choose another folder"
            ) from None
        restore(folder)  # what a killed process left
        stack.callback(restore, folder)
        if overwrite:
            set_aside(folder)
        yield


def continues(folder: Path, recipe: Recipe) -> bool:
    """Whether `folder` holds a run of this very recipe that is not finished. It then goes on from its last checkpoint:
    what restarts a command (torchrun, Slurm, Kubernetes) gives the same arguments again.

    torchrun may also have to restart because a host is lost when the model has just been saved.
    """
    unfinished = not (folder / MODEL).exists() or restarts() > 0
    try:
        return unfinished and (folder / RECIPE).is_file() and run_recipe(folder) == recipe
    except LabelwiseError:  # it cannot be read: not ours
        return False


def restarts() -> int:
    """How often torchrun may start this group again."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))


def _is_a_run(folder: Path) -> bool:
    """Whether its recipe is one of ours. A damaged one may be, if other parts of a run are there."""
    try:
        run_recipe(folder)
    except LabelwiseError:
        return any((folder / part).exists() for part in (HISTORY, CHECKPOINTS, MODEL)) or replacing(folder)
    return True


def check_folder(folder: Path, resume: bool, overwrite: bool) -> None:
    """Raise an error if a training cannot write to `folder`."""
    if folder.is_file():
        raise LabelwiseError(f"{str(folder)!r} is a file; name a folder for the run", options={"out": "runs/first"})
    used = (folder / RECIPE).exists() or replacing(folder)
    if (folder / RECIPE).exists() and not _is_a_run(folder):
        raise LabelwiseError(f"{str(folder / RECIPE)!r} belongs to no run of labelwise; choose another folder")
    if resume and not used:
        raise LabelwiseError(f"there is no run in {str(folder)!r} to resume; start a new one")
    if used and not resume and not overwrite:
        raise LabelwiseError(
            f"{str(folder)!r} already holds a run; resume or overwrite it, or choose another folder",
            options={"resume": True, "overwrite": True},
            either=True,
        )
    ours = [MODEL] if _was_begun(folder) else [MODEL, SPLITS, HISTORY, LOG]
    foreign = [] if used else [name for name in ours if (folder / name).exists()]
    if foreign:
        raise LabelwiseError(f"{str(folder / foreign[0])!r} exists and belongs to no run; choose another folder")


def _was_begun(folder: Path) -> bool:
    """Whether the log is that of a training, which may have been stopped before it wrote its recipe."""
    try:
        return _LOGGED.match((folder / LOG).read_text(encoding="utf-8")) is not None
    except (OSError, ValueError):
        return False
