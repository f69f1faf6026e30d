"""`lw.train` and `lw.sweep`: train one model, or every combination of some settings."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from math import inf
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from labelwise.api.inputs import require
from labelwise.backbones.config import check_weights
from labelwise.core import terminal
from labelwise.core.errors import LabelwiseError, torch_needed, unknown_name
from labelwise.core.tables import html_table, to_frame
from labelwise.data.images import OnBadImage
from labelwise.data.manifests import lost_label_notes, write_manifest
from labelwise.data.readers.manifest import ManifestOptions
from labelwise.data.sources import as_table, is_frame, with_options
from labelwise.data.table import LabelTable
from labelwise.runtime.run_files import SPLITS, settle
from labelwise.sweeps.plan import check_data, plan
from labelwise.training.budget import Work, choose, planned_before
from labelwise.training.check import check, check_options
from labelwise.training.recipe import Freeze, Recipe, full_key, load_recipe, run_recipe
from labelwise.training.run import Run, check_folder, continues, restarts
from labelwise.training.tables import data_fingerprint, open_source

if TYPE_CHECKING:
    import pandas

    from labelwise.api.inputs import Data
    from labelwise.sweeps.execute import Outcome

_NOT_SETTINGS = (
    "out",
    "recipe",
    "minutes",
    "resume",
    "overwrite",
    "runner",
    "address",
    "processes",
    "settings",
)  # arguments of `train` that no recipe has


def train(
    data: Data | None = None,
    *,
    out: str | Path,
    recipe: str | Path | None = None,
    minutes: float | None = None,
    head: str | None = None,
    backbone: str | None = None,
    weights: str | None = None,
    size: int | None = None,
    freeze: Freeze | None = None,
    start: str | Path | Run | None = None,
    loss: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    workers: int | None = None,
    on_bad_image: OnBadImage | None = None,
    resume: bool = False,
    overwrite: bool = False,
    runner: Literal["ray"] | None = None,
    address: str | None = None,
    processes: int | None = None,
    **settings: Any,
) -> Run:
    """Train a model on images with labels. Without a recipe: a query head on a frozen, pretrained backbone.

    The defaults below are those of the default recipe; another recipe brings its own.

    Args:
        data: Images and labels: a path, `format:path` or `format:path?option=value`, also shards and buckets (`*.tar`,
            `s3://…`, see `labelwise.data.sources.open_images`); a DataFrame or a table, which
            is written to `out` so that the recipe can be run again.
        out: Folder of the run: model, recipe, metrics, checkpoints and log.
        recipe: A YAML file with all settings; the other arguments override individual settings.
        minutes: A time limit instead of a recipe: chooses size, head, epochs and, if necessary, a sample of the images
            for the most accurate training that finishes in time on this machine. Settings you give are kept.
        head: Name of the head; `labelwise heads` lists them. Default: hsq-baseline.
        backbone: Name of the timm backbone; `labelwise backbones` lists them. Default: tf_efficientnet_lite2.
        weights: Weights of the backbone: `auto`, `hub`, `package`, `none` or a file. Default: auto.
        size: Input size in pixels. Default: 224.
        freeze: `backbone` trains only the head, on features that are computed once and cached; `early` also trains
            the last layers of the backbone; `stem` all but its stem and first stage, `stem+norms` not its batch norms
            either; `none` trains everything. Default: backbone.
        start: A trained model to continue from. A run also brings its data, splits, head, backbone and loss; a model
            folder or a hub id has to fit the other settings. To fine-tune, also change `freeze` and use a small `lr`.
        loss: Name of the loss: asymmetric, bce, focal, two-way, ranking, hill, splc, csl, em, role, gpr or
            softmax-cross-entropy. Default: asymmetric.
        epochs: Passes over the training images. Default: 6.
        batch_size: Images per step, of all processes together. Default: 32.
        lr: Highest learning rate. Default: 0.0006.
        seed: Seed of everything random; the same seed gives the same weights. Default: 0.
        workers: Processes that load images, if the backbone is trained too. Default: 2.
        on_bad_image: `skip` leaves out images that cannot be decoded, and counts them. Default: error.
        resume: Continue the run in `out` exactly where it stopped; no other argument may be given. An unfinished run
            is also continued if `train` is called again with the same arguments.
        overwrite: Replace the run in `out`; it is kept until the new one has a checkpoint.
        runner: `ray`: in several processes through Ray Train, on this machine or on a cluster. Default: in this
            process, or in those that torchrun starts.
        address: The Ray cluster, e.g. `auto`. Default: Ray is started on this machine for this training alone.
        processes: How many processes Ray starts. Default: one per GPU, or one per machine if there are none.
        **settings: Any other setting of the recipe: `mixup=0.2`, `optimizer={"weight_decay": 0.05}`, or with a dotted
            name, `**{"head.shared_experts": 4}`. Also options of the data's reader: `image_column="Id"`,
            `label_column`, `separator`, `root` and others.

    Example:
        >>> import labelwise as lw
        >>> run = lw.train("photos.csv", out="runs/first", epochs=5)  # doctest: +SKIP
        >>> lw.evaluate(run, split="test")  # doctest: +SKIP
    """
    named = {key: value for key, value in locals().items() if key not in _NOT_SETTINGS and value is not None}
    started = time.monotonic()
    source = _DataSource(data, settings, Path(out))
    named |= source.argument
    if "start" in named:
        named["start"] = _path(named["start"])
    changes = {full_key(key): value for key, value in named.items()} | _changes(source.settings, train)
    if minutes is not None:
        _check_minutes(minutes, resume=resume, recipe=recipe, runner=runner, changes=changes)
    if resume:
        if changes or recipe or overwrite:
            raise LabelwiseError("a resumed run continues as it was: give only its folder", options={"out": str(out)})
        settle(Path(out))
        check_folder(Path(out), resume, overwrite)
    if overwrite and (restarts() or runner):
        raise LabelwiseError(
            "a training that is restarted when a process is lost would overwrite its own checkpoints; delete the run "
            "that is there, or choose another folder"
        )
    if runner is None and (address or processes):
        raise LabelwiseError("an address and a number of processes are for Ray; say so", options={"runner": "ray"})
    earlier = planned_before(changes, Path(out), minutes) if minutes is not None and not overwrite else None
    chosen = earlier or (run_recipe(Path(out)) if resume else load_recipe(recipe, changes))
    # With minutes, `chosen` is the default recipe until a plan is made: a run of it is not what was asked for.
    may_continue = not overwrite and (minutes is None or earlier is not None)
    resume = resume or (may_continue and continues(Path(out), chosen))
    check(chosen)
    check_options(chosen, changes)
    if chosen.model.start is None:
        check_weights(chosen.model.weights)
    check_folder(Path(out), resume, overwrite)
    source.write()
    table = open_source(chosen)
    if runner is not None:
        with torch_needed():
            from labelwise.training.ray_runner import train_on_ray
        return train_on_ray(chosen, Path(out), resume=resume, address=address, processes=processes)
    deadline = None
    if minutes is not None and not resume:
        if not isinstance(table, LabelTable):
            raise LabelwiseError(f"{table.source}: minutes are planned for images in a table, not in shards")
        work = Work.of(table, changes)
        with torch_needed():
            from labelwise.training.speeds import measure_speeds
        choice = choose(work, measure_speeds(work, table), minutes, spent=time.monotonic() - started)
        chosen, deadline = choice.recipe, started + 60 * minutes
        terminal.say(str(choice), stderr=True)
    # PyTorch takes seconds to load: not before every mistake is told that can be told without it.
    with torch_needed():
        from labelwise.training.train import train as train_recipe
    return train_recipe(chosen, out, resume=resume, overwrite=overwrite, source=table, deadline=deadline)


def _check_minutes(
    minutes: float, *, resume: bool, recipe: str | Path | None, runner: str | None, changes: Mapping[str, Any]
) -> None:
    """Raise an error if there is nothing to plan for some minutes."""
    if not (isinstance(minutes, Real) and 0 < minutes < inf):
        raise LabelwiseError(f"minutes is how long the training may take, a number above 0, not {minutes!r}")
    if resume:
        raise LabelwiseError("a resumed run keeps the plan that it began with; leave out the minutes")
    if recipe is not None or "model.start" in changes:
        raise LabelwiseError("a recipe or a model to continue from has its own size and head; leave out the minutes")
    if changes.get("model.freeze", "backbone") != "backbone":
        raise LabelwiseError(
            "minutes are planned for a frozen backbone; train the rest in a second run that starts from the first"
        )
    if runner is not None or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise LabelwiseError("minutes are planned for one process; leave them out, or train in one process")


@dataclass(frozen=True)
class SweepResult:
    """The runs of a sweep with their numbers.

    Attributes:
        out: Folder of the sweep; each run has a folder in it.
        outcomes: What became of each run, in the order of the grid.
        rows: Settings, status and metrics (percent) of each run.
        over_seeds: Mean and standard deviation over runs that differ only in their seed.
        report: The comparison page, if one was written.
    """

    out: Path
    outcomes: list[Outcome]
    rows: list[dict[str, Any]]
    over_seeds: list[dict[str, Any]]
    settings: tuple[str, ...]  # of the grid
    report: Path | None = None

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]

    def to_pandas(self) -> pandas.DataFrame:
        """A frame with one row per run."""
        return to_frame(self.rows, "run")

    def __repr__(self) -> str:
        counts = Counter(outcome.status for outcome in self.outcomes)
        told = ", ".join(f"{status}={count}" for status, count in counts.items())
        return f"SweepResult({str(self.out)!r}, runs={len(self.outcomes)}, {told})"

    def _repr_html_(self) -> str:
        from labelwise.sweeps.execute import METRICS

        columns = ["run", "status", *METRICS]
        return html_table(columns, ([row[name] for name in columns] for row in self.rows))


def sweep(
    grid: Mapping[str, Sequence[Any]],
    *,
    out: str | Path,
    data: Data | None = None,
    recipe: str | Path | None = None,
    test_split: str | None = "test",
    skip_invalid: bool = False,
    dry_run: bool = False,
    jobs: int = 1,
    report: bool = True,
    say: Callable[[str], None] = lambda text: None,
    **settings: Any,
) -> SweepResult:
    """Train every combination of some settings, measure all runs on the same images and compare them.

    Call it again with the same arguments to continue: finished runs are kept, an interrupted one resumes where it
    stopped, failed ones are tried again.

    Args:
        grid: Settings and the values to try. Keys are the recipe's (`optimizer.weight_decay`), or `head`,
            `head.OPTION`, `backbone`, `size`, `freeze`, `loss`, `lr`.
        out: Folder of the sweep: one folder per run, `results.csv`, `results.json` and the report.
        data: Images and labels, as for `lw.train`.
        recipe: A YAML file with all other settings.
        test_split: The images on which the runs are compared; None for validation only.
        skip_invalid: Leave out an option for heads that do not have it; by default that is an error.
        dry_run: List the runs and what is there already, and do nothing.
        jobs: Number of runs at a time.
        report: Write the comparison page at the end.
        say: Called with one line when a run starts or ends.
        **settings: Other settings for all runs, as for `lw.train`.

    Example:
        >>> import labelwise as lw
        >>> result = lw.sweep({"head": ["gap", "hsq"], "seed": [0, 1, 2]}, data="photos.csv", out="sweeps/heads")
        ... # doctest: +SKIP
        >>> result.to_pandas()[["head", "mAP"]]  # doctest: +SKIP
    """
    require(jobs=(jobs, 1))
    out = Path(out)
    source = _DataSource(data, settings, out)
    changes = _changes({**source.settings, **source.argument}, sweep)
    runs = plan(recipe, changes, grid, skip_invalid=skip_invalid)
    if not dry_run:
        source.write()
    split_file = None if dry_run and not (out / SPLITS).exists() else check_data(runs, out, test_split)
    if split_file is not None:
        say(f"{runs[0].recipe.data.source} has no splits: all runs use the train, val and test of {split_file}")
        runs = plan(recipe, {**changes, "data.source": str(split_file)}, grid, skip_invalid=skip_invalid)
    with torch_needed():
        from labelwise.sweeps.execute import (
            Outcome,
            check_results,
            over_seeds,
            rows_of,
            run_sweep,
            status_of,
            write_results,
        )
    check_results(out)
    if dry_run:
        outcomes = [Outcome(planned, status_of(out / planned.name, planned)) for planned in runs]
        return SweepResult(out, outcomes, rows_of(outcomes, out), [], tuple(grid))

    known: dict[str, Outcome] = {}

    def write() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        rows = rows_of([known[planned.name] for planned in runs if planned.name in known], out)
        summary = over_seeds(rows, [key for key in grid if rows and key in rows[0]])
        if rows:
            write_results(rows, summary, out)
        return rows, summary

    def tell(outcome: Outcome, number: int) -> None:
        place = f"[{number + 1} of {len(runs)}] {outcome.planned.name}"
        if outcome.status in ("new", "interrupted"):
            say(f"{place}: {'starting' if outcome.status == 'new' else 'resuming'}")
            return
        known[outcome.planned.name] = outcome
        result = f"mAP {outcome.measured['mAP']:.2f}" if outcome.measured and outcome.measured["mAP"] else "finished"
        say(f"{place}: {result if outcome.status == 'finished' else 'failed: ' + outcome.reason}")
        write()  # an interrupted sweep has the results so far

    outcomes = run_sweep(runs, out, test_split=test_split, jobs=jobs, tell=tell)
    rows, summary = write()
    finished = [outcome for outcome in outcomes if outcome.status == "finished"]
    page = _sweep_report(finished, out, test_split, say) if report and test_split is not None and finished else None
    return SweepResult(out, outcomes, rows, summary, tuple(grid), page)


def _sweep_report(finished: Sequence[Outcome], out: Path, split: str, say: Callable[[str], None]) -> Path | None:
    from labelwise.api.evaluation import report

    if len({outcome.planned.recipe.data.source for outcome in finished}) > 1:
        say("no report: the runs were trained on different data; compare some of them with a report of their own")
        return None
    folders = [out / outcome.planned.name for outcome in finished]
    return report(folders, out=out / "report", split=split, warn=lambda text: say(f"warning: {text}"))


class _DataSource:
    """The data of a training as a recipe names it: one string, with the options of its reader. A table in memory gets a
    name in the run's folder, where `write` puts it once nothing else can go wrong."""

    def __init__(self, data: Data | None, settings: Mapping[str, Any], folder: Path) -> None:
        reader = {key: value for key, value in settings.items() if key in ManifestOptions.model_fields}
        self.settings = {key: value for key, value in settings.items() if key not in reader}
        self.argument: dict[str, str] = {}
        self._table: LabelTable | None = None
        if isinstance(data, LabelTable) or is_frame(data):
            self._table = as_table(data, **reader)
            self._file = folder / f"data-{data_fingerprint(self._table)[:8]}.csv"
            self.argument = {"data": str(self._file)}
        elif data is not None:
            self.argument = {"data": with_options(_path(data), reader)}
        elif reader:
            raise LabelwiseError(f"{next(iter(reader))} says how to read a table; name it", options={"data": ...})

    def write(self) -> None:
        if self._table is not None:
            write_manifest(self._table, self._file, columns=bool(lost_label_notes(self._table)))


def _path(source: object) -> str:
    return os.fspath(source) if isinstance(source, os.PathLike) else str(source)


def recipe_with(recipe: str | Path | None, data: Data | None, settings: Mapping[str, Any]) -> Recipe:
    """A recipe with some settings changed, named as `train`'s arguments are."""
    arguments = signature(train).parameters  # None is their default; for other settings it is a value
    given = {
        key: value for key, value in {"data": data, **settings}.items() if value is not None or key not in arguments
    }
    if isinstance(data, LabelTable) or is_frame(data):
        raise LabelwiseError("an estimate reads its data from a path; give that, or the numbers of images and labels")
    source = _DataSource(data, given, Path())
    start = {"start": _path(given["start"])} if "start" in given else {}
    return load_recipe(recipe, _changes(source.settings | source.argument | start, train))


def _changes(settings: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword arguments as dotted settings of a recipe. An unknown one is refused with the nearest name.

    >>> _changes({"mixup": 0.2, "head.shared_experts": 4, "optimizer": {"weight_decay": 0.05}}, train)
    {'mixup': 0.2, 'model.options.shared_experts': 4, 'optimizer.weight_decay': 0.05}
    """
    names = [name for name, one in signature(function).parameters.items() if one.kind is one.KEYWORD_ONLY]
    settings_only = [name for name in names if full_key(name) != name or name in Recipe.model_fields]
    valid = list(dict.fromkeys([*settings_only, *Recipe.model_fields]))
    changes: dict[str, Any] = {}
    for key, value in settings.items():
        full = full_key(key)
        section = full.partition(".")[0]
        if section not in Recipe.model_fields and section not in Recipe.renamed:
            raise unknown_name("setting", key.partition(".")[0], valid)
        if isinstance(value, Mapping) and full in Recipe.model_fields:
            changes |= {f"{full}.{name}": inner for name, inner in value.items()}
        else:
            changes[full] = value
    return changes
