"""`labelwise sweep`: a grid of trainings from one command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from labelwise.cli.common import parse_options, say
from labelwise.core.errors import LabelwiseError

if TYPE_CHECKING:
    from labelwise.sweeps.execute import Outcome
    from labelwise.sweeps.plan import PlannedRun


def sweep(
    *,
    grid: Annotated[list[str], Parameter(negative=())],
    out: Path,
    data: str | None = None,
    recipe: Path | None = None,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    test_split: str = "test",
    skip_invalid: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    jobs: int = 1,
    report: bool = True,
) -> None:
    """Train every combination of some settings and compare the results. Give the same command again to go on: finished
    runs are kept, an interrupted one continues where it stopped, failed ones are tried again.

    Parameters
    ----------
    grid
        A setting and its values, also several times: --grid head.shared_experts=0,4,16 --grid seed=0,1,2.
        Keys are the recipe's (optimizer.weight_decay), or head, head.OPTION, backbone, size, freeze, loss, lr.
    out
        Folder of the sweep: a folder for each run, results.csv, results.json and the report go there.
    data
        Photos and labels, as for labelwise train.
    recipe
        A YAML file with all other settings; without it, those of labelwise train.
    set_
        Another setting for all runs, dotted: --set epochs=5.
    test_split
        The images on which the runs are compared; none: validation only.
    skip_invalid
        Leave an option out for heads that do not have it, which then run once; without it, that is an error.
    dry_run
        List the runs and what is there already, and do nothing.
    jobs
        How many runs at a time.
    report
        Write the comparison page at the end.
    """
    from labelwise.sweeps.execute import run_sweep, status_of
    from labelwise.sweeps.plan import FILE as SPLITS
    from labelwise.sweeps.plan import check_data, parse_grid, plan
    from labelwise.training.recipe import full_key

    if jobs < 1:
        raise LabelwiseError(f"--jobs {jobs}: give 1 or more")
    changes = {full_key(key): value for key, value in parse_options(set_ or []).items()}
    if data is not None:
        changes["data.source"] = data
    wanted = parse_grid(grid)
    split = None if test_split == "none" else test_split
    runs = plan(recipe, changes, wanted, skip_invalid=skip_invalid)
    made = None if dry_run and not (out / SPLITS).exists() else check_data(runs, out, split)
    if made is not None:
        say(f"{runs[0].recipe.data.source} has no splits: train, val and test are the same for all runs, in {made}")
        runs = plan(recipe, {**changes, "data.source": str(made)}, wanted, skip_invalid=skip_invalid)
    if dry_run:
        for planned in runs:
            say(f"{status_of(out / planned.name, planned):12}{out / planned.name}")
        say(f"{len(runs)} runs")
        return

    show = _Progress(runs, out, list(wanted))
    try:
        outcomes = run_sweep(runs, out, test_split=split, jobs=jobs, tell=show.tell)
    except KeyboardInterrupt:
        show.write()
        say("stopped; nothing is lost. Give the same command again to go on.")
        raise
    show.print_tables()
    say(f"results: {out / 'results.csv'}, {out / 'results.json'}")
    finished = [outcome for outcome in outcomes if outcome.status == "finished"]
    if report and split is not None and finished:
        _report(finished, out, split)
    if len(finished) < len(outcomes):
        failed = len(outcomes) - len(finished)
        raise LabelwiseError(f"{failed} of {len(outcomes)} runs failed; give the same command again to try them again")


class _Progress:
    """What a person sees of a sweep, and the results so far on disk."""

    def __init__(self, runs: Sequence[PlannedRun], out: Path, settings: Sequence[str]) -> None:
        self.runs, self.out, self.settings = runs, out, settings
        self.known: dict[str, Outcome] = {}
        self.console = Console(highlight=False)

    def tell(self, outcome: Outcome, number: int) -> None:
        place = f"[{number + 1} of {len(self.runs)}] {outcome.planned.name}"
        if outcome.status in ("new", "interrupted"):
            say(f"{place}: {'starting' if outcome.status == 'new' else 'going on where it stopped'}")
            return
        self.known[outcome.planned.name] = outcome
        result = f"mAP {outcome.measured['mAP']:.2f}" if outcome.measured and outcome.measured["mAP"] else "finished"
        say(f"{place}: {result if outcome.status == 'finished' else 'failed: ' + outcome.reason}")
        self.write()

    def rows(self) -> list[dict[str, Any]]:
        from labelwise.sweeps.execute import rows_of

        in_order = [self.known[run.name] for run in self.runs if run.name in self.known]
        return rows_of(in_order, self.out)

    def write(self) -> None:
        from labelwise.sweeps.execute import over_seeds, write_results

        if rows := self.rows():
            write_results(rows, over_seeds(rows, [key for key in self.settings if key in rows[0]]), self.out)

    def print_tables(self) -> None:
        from labelwise.sweeps.execute import METRICS, over_seeds

        rows = self.rows()
        settings = [key for key in self.settings if key in rows[0]]
        self.console.print(_table("runs", rows, [*settings, "status", *METRICS, "validation_mAP", "seconds"]))
        summary = over_seeds(rows, settings)
        if summary:
            others = [key for key in summary[0] if key in settings]
            numbers = [name for metric in METRICS for name in (metric, f"{metric}_sd")]
            self.console.print(_table("mean over the seeds", summary, [*others, "seeds", *numbers]))


def _table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    shown = [column for column in columns if any(row.get(column) is not None for row in rows)]
    table = Table(title=title, title_justify="left")
    for column in shown:
        table.add_column(column.replace("_", " "), justify="right" if column not in ("status",) else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in shown))
    return table


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def _report(finished: Sequence[Outcome], out: Path, split: str) -> None:
    from labelwise.reports.page import ReportOptions, runs_report

    if len({outcome.planned.recipe.data.source for outcome in finished}) > 1:
        say("no report: the runs were trained on different data; compare some with: labelwise report RUN RUN")
        return
    folders = [out / outcome.planned.name for outcome in finished]
    workers = finished[0].planned.recipe.workers
    page = runs_report(folders, out / "report", ReportOptions(split=split, workers=workers))
    say(f"Open {page} in a browser.")
