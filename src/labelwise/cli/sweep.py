"""`labelwise sweep`: a grid of trainings from one command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

import labelwise as lw
from labelwise.cli.common import (
    AtLeastOne,
    FileName,
    Flag,
    Names,
    described_by,
    parse_options,
    parse_setting,
    say,
    takes_table,
)
from labelwise.core.errors import LabelwiseError, counted
from labelwise.core.tables import TerminalTable
from labelwise.core.terminal import open_console

if TYPE_CHECKING:
    from labelwise.api.training import SweepResult


@takes_table
@described_by("api.training:sweep")
def sweep(
    *,
    grid: Names,
    out: Path,
    data: FileName | None = None,
    recipe: Path | None = None,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    test_split: str = "test",
    skip_invalid: Flag = False,
    dry_run: Flag = False,
    jobs: Annotated[int, AtLeastOne] = 1,
    report: bool = True,
) -> None:
    """Train every combination of some settings and compare the results.

    Give the same command again to continue: finished runs are kept, an interrupted one resumes where it stopped, failed
    ones are tried again.

    Parameters
    ----------
    grid
        A setting and its values; may be repeated: --grid head.dim=128,256 --grid seed=0,1,2.
        Keys are the recipe's (optimizer.weight_decay), or head, head.OPTION, backbone, size, freeze, loss, lr.
    data
        Images and labels, as for labelwise train.
    test_split
        The images on which the runs are compared; none: validation only.
    set_
        Another setting for all runs: --set epochs=5.
    """
    try:
        result = lw.sweep(
            parse_grid(grid),
            out=out,
            data=data,
            recipe=recipe,
            test_split=None if test_split == "none" else test_split,
            skip_invalid=skip_invalid,
            dry_run=dry_run,
            jobs=jobs,
            report=report,
            say=say,
            **parse_options(set_ or [], flags=signature(lw.sweep).parameters),
        )
    except KeyboardInterrupt:
        say("stopped; nothing is lost. Give the same command again to continue.")
        raise
    if dry_run:
        for outcome in result.outcomes:
            say(f"{outcome.status:12}{out / outcome.planned.name}")
        say(counted(len(result.outcomes), "run"))
        return
    _print_tables(result)
    say(f"results: {out / 'results.csv'}, {out / 'results.json'}")
    if result.report is not None:
        say(f"Open {result.report} in a browser.")
    if result.failed:
        raise LabelwiseError(
            f"{len(result.failed)} of {counted(len(result.outcomes), 'run')} failed; "
            "give the same command again to retry them"
        )


def parse_grid(settings: Iterable[str]) -> dict[str, list[Any]]:
    """Keys as typed, with the values to try, read as YAML.

    >>> parse_grid(["head=hsq,gap", "head.widths=[64,16],[32]", "seed=0,1"])
    {'head': ['hsq', 'gap'], 'head.widths': [[64, 16], [32]], 'seed': [0, 1]}
    """
    grid: dict[str, list[Any]] = {}
    for setting in settings:
        key, values = parse_setting("--grid", setting, "KEY=VALUE,VALUE, for example --grid seed=0,1,2", several=True)
        if key in grid:
            raise LabelwiseError(f"--grid {setting!r}: {key!r} is given twice; put all its values into one --grid")
        grid[key] = values
    return grid


def _print_tables(result: SweepResult) -> None:
    from labelwise.sweeps.execute import METRICS

    console = open_console(highlight=False)
    numbers = [*METRICS, "validation_mAP", "seconds"]
    console.print(_table("runs", result.rows, [*result.settings, "status"], numbers))
    if result.over_seeds:
        settings = [key for key in result.over_seeds[0] if key in result.settings]
        numbers = [name for metric in METRICS for name in (metric, f"{metric}_sd")]
        console.print(_table("mean over the seeds", result.over_seeds, settings, ["seeds", *numbers]))


def _table(
    title: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str], numbers: Sequence[str]
) -> TerminalTable:
    shown = [column for column in (*names, *numbers) if any(row.get(column) is not None for row in rows)]
    header = [column.replace("_", " ") for column in shown]
    cells = [[_cell(row.get(column)) for column in shown] for row in rows]
    return TerminalTable(header, cells, title, names=sum(column in names for column in shown))


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
