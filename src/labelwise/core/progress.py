"""How far a long computation is: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

PLAIN_SECONDS = 10.0  # between plain lines


class _SpeedColumn(TextColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.1f} images/s")


@contextmanager
def progress_of(description: str, total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how many images were done. Everything goes to stderr."""
    console = Console(stderr=True)
    if not shown:
        yield lambda done: None
    elif console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _SpeedColumn(""))
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
            task = progress.add_task(description, total=total)
            yield lambda done: progress.advance(task, done)
    else:
        yield _PlainLines(console, description, total).advance


class _PlainLines:
    def __init__(self, console: Console, description: str, total: int) -> None:
        self.console, self.description, self.total = console, description, total
        self.start = self.last = time.monotonic()
        self.done = 0

    def advance(self, done: int) -> None:
        self.done += done
        now = time.monotonic()
        if now - self.last >= PLAIN_SECONDS:
            self.last = now
            rate = self.done / (now - self.start)
            left = timedelta(seconds=round((self.total - self.done) / rate)) if rate else "?"
            self.console.print(
                f"{self.description}: {self.done:,} of {self.total:,}, {rate:,.1f} images/s, {left} left",
                highlight=False,
                soft_wrap=True,
            )


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
