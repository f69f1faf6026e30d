"""Execute a sweep, one run after the other or several at a time. Finished runs are kept, interrupted ones resume where
they stopped, and a failure is recorded while the others go on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from labelwise.analysis.measured import measure_runs
from labelwise.core.environment import thread_count
from labelwise.core.errors import LabelwiseError, one_line
from labelwise.core.files import atomic_write, check_replaceable
from labelwise.core.tables import write_csv
from labelwise.data.sources import open_data
from labelwise.data.table import LabelTable
from labelwise.runtime.run_files import RECIPE, settle
from labelwise.sweeps.plan import PlannedRun
from labelwise.training.recipe import full_key, run_recipe
from labelwise.training.run import Run, read_history, with_splits_of_run
from labelwise.training.train import train

Status = Literal["new", "interrupted", "finished", "failed"]
METRICS = ("mAP", "CF1", "OF1")


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
        planned: The run.
        status: How far it is.
        error: Why it failed.
        measured: Of a finished run: its evaluation and complexity as plain values.
    """

    planned: PlannedRun
    status: Status
    error: LabelwiseError | None = None
    measured: dict[str, Any] | None = None

    @property
    def reason(self) -> str:
        """Of a failure, in one line."""
        return "" if self.error is None else one_line(self.error)


def status_of(folder: Path, planned: PlannedRun) -> Status:
    """How far a run is. Another run in its folder is an error: its results would be taken for this one's."""
    settle(folder)
    if not (folder / RECIPE).exists():
        return "new"
    if run_recipe(folder) != planned.recipe:
        raise LabelwiseError(
            f"{str(folder)!r} holds a run with other settings than this sweep's; choose another folder, or remove it"
        )
    return "finished" if (folder / "model" / "config.json").exists() else "interrupted"


def run_sweep(
    runs: Sequence[PlannedRun],
    out: Path,
    *,
    test_split: str | None,
    jobs: int = 1,
    tell: Callable[[Outcome, int], None] = lambda outcome, number: None,
) -> list[Outcome]:
    """Train all runs that are not finished and measure them.

    Args:
        runs: The planned runs.
        out: Folder of the sweep.
        test_split: The images to measure on; None for no measurement.
        jobs: How many runs to train at a time.
        tell: Called with each run when it starts (status new or interrupted) and with each outcome, and its number.

    Returns:
        The outcomes, in the order of the runs.
    """
    outcomes = {planned.name: Outcome(planned, status_of(out / planned.name, planned)) for planned in runs}
    steps = _one_by_one(list(outcomes.values()), out, test_split, tell)
    if jobs > 1:
        steps = _several(jobs, list(outcomes.values()), out, test_split)
    for number, outcome in steps:
        outcomes[outcome.planned.name] = outcome
        tell(outcome, number)
    return list(outcomes.values())


def _one_by_one(
    waiting: Sequence[Outcome], out: Path, test_split: str | None, tell: Callable[[Outcome, int], None]
) -> Iterator[tuple[int, Outcome]]:
    for number, outcome in enumerate(waiting):
        if outcome.status != "finished":
            tell(outcome, number)
        yield number, run_one(outcome, out, test_split)


def _several(jobs: int, waiting: Sequence[Outcome], out: Path, test_split: str | None) -> Iterator[tuple[int, Outcome]]:
    # Fresh processes: a forked one would inherit PyTorch's threads in an unknown state.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_quiet_worker, initargs=(jobs,))
    try:
        numbers = {pool.submit(run_one, outcome, out, test_split): n for n, outcome in enumerate(waiting)}
        for future in as_completed(numbers):
            try:
                done = future.result()
            except BrokenProcessPool:  # it also ends the others, which resume when the sweep is started again
                killed = LabelwiseError("its process, or that of another run, was killed; was there too little memory?")
                done = replace(waiting[numbers[future]], status="failed", error=killed)
            yield numbers[future], done
    finally:
        pool.shutdown(cancel_futures=True)


def _quiet_worker(jobs: int) -> None:
    """Each process gets its share of the cores and shows no progress; log.txt has everything."""
    import sys

    import torch

    threads = max(1, thread_count() // jobs)
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # of engines and decoding, too
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # for the life of the process


def run_one(outcome: Outcome, out: Path, test_split: str | None) -> Outcome:
    """Train a run if it is not finished, then measure it. An error is this run's failure and does not end the sweep."""
    planned, folder = outcome.planned, out / outcome.planned.name
    try:
        if outcome.status != "finished":
            train(planned.recipe, folder, resume=outcome.status == "interrupted")
        measured = None if test_split is None else measure_run(folder, planned, test_split)
    except Exception as error:
        known = error if isinstance(error, LabelwiseError) else LabelwiseError(f"{type(error).__name__}: {error}")
        return replace(outcome, status="failed", error=known)
    return replace(outcome, status="finished", measured=measured)


def measure_run(folder: Path, planned: PlannedRun, split: str) -> dict[str, Any]:
    """Evaluation and complexity of a finished run. Its predictions are stored, so that doing it again takes seconds."""
    table = with_splits_of_run(_table(str(planned.recipe.data.source)), folder).select(split)
    (measured,) = measure_runs([Run(folder)], table, folder, bootstrap=0)
    return measured.to_dict()


@lru_cache(maxsize=2)  # the runs of a sweep use the same data
def _table(source: str) -> LabelTable:
    return open_data(source)


def rows_of(outcomes: Sequence[Outcome], out: Path) -> list[dict[str, Any]]:
    """Settings, status and metrics of each run; None for what a run does not have."""
    keys = list(dict.fromkeys(key for outcome in outcomes for key in outcome.planned.settings))
    rows = []
    for outcome in outcomes:
        measured = outcome.measured or {}
        history = read_history(out / outcome.planned.name)
        rows.append(
            {
                "run": outcome.planned.name,
                **{key: outcome.planned.settings.get(key) for key in keys},
                "status": outcome.status,
                **{key: measured.get(key) for key in METRICS},
                "validation_mAP": max((row["mAP"] for row in history if row.get("mAP") is not None), default=None),
                "parameters": measured.get("complexity", {}).get("parameters"),
                "macs": measured.get("complexity", {}).get("macs"),
                "epochs": len(history),
                "seconds": history[-1]["seconds"] if history else None,
                "reason": outcome.reason or None,
            }
        )
    return rows


def over_seeds(rows: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> list[dict[str, Any]]:
    """Mean and standard deviation of each metric over runs that differ only in their seed.

    >>> rows = [{"head": "hsq", "seed": s, "mAP": m, "CF1": m, "OF1": None} for s, m in enumerate([90.0, 92.0])]
    >>> over_seeds(rows, ["head", "seed"])
    [{'head': 'hsq', 'seeds': 2, 'mAP': 91.0, 'mAP_sd': 1.4142135623730951, 'CF1': 91.0, 'CF1_sd': 1.4142135623730951}]
    """
    others = [key for key in settings if full_key(key) != "seed"]
    if len(others) == len(settings):
        return []
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(json.dumps([row[key] for key in others]), []).append(row)
    summary = []
    for members in groups.values():
        entry: dict[str, Any] = {key: members[0][key] for key in others}
        entry["seeds"] = sum(row["mAP"] is not None for row in members)
        for metric in METRICS:
            values = [row[metric] for row in members if row[metric] is not None]
            if values:
                entry |= {metric: mean(values), f"{metric}_sd": stdev(values) if len(values) > 1 else None}
        summary.append(entry)
    return summary


def check_results(out: Path) -> None:
    """Raise an error if the results of a sweep would replace somebody else's."""
    check_replaceable(out / "results.json")
    if (out / "results.csv").exists() and not (out / "results.json").exists():
        raise LabelwiseError(f"{str(out / 'results.csv')!r} exists and belongs to no sweep; choose another folder")


def write_results(rows: Sequence[Mapping[str, Any]], summary: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write results.csv and results.json; after each run, so that an interrupted sweep has its results so far."""
    out.mkdir(parents=True, exist_ok=True)
    content = {"runs": list(rows), "over_seeds": list(summary)}
    atomic_write(out / "results.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    write_csv(out / "results.csv", rows)
