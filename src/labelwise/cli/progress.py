"""The bar of long predictions: how many, how fast, how long still."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

FEW = 8  # pictures that need no bar


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} images/s" if task.speed else "")


@contextmanager
def picture_progress(total: int | None, done: int = 0) -> Iterator[Progress]:
    """A bar on stderr, if somebody looks and there are more than a few pictures; its only task counts them.

    `total` is None where nobody knows yet. `done` were finished by an earlier run: they do not count for the speed.
    """
    console = Console(stderr=True)
    hidden = not console.is_terminal or (total is not None and total <= FEW)
    columns = (TextColumn("Predicting"), BarColumn(), MofNCompleteColumn(), _Speed(), TimeRemainingColumn())
    # Lines for a terminal pass through the bar's console, or they would tear it; lines for a pipe must not.
    redirect = sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, disable=hidden, redirect_stdout=redirect) as progress:
        progress.add_task("Predicting", total=total, completed=done)
        yield progress
