"""How far a long computation is: a bar in a terminal or a notebook, plain lines elsewhere, or your own callback."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import Literal, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

# What every function with an argument `progress` takes: whether to show it, or a function that is told what is being
# done, how much of it is done, and how much there is (None: not known yet).
ShowProgress = bool | Callable[[str, int, int | None], None]
Unit = Literal["images", "files", "bytes", "runs"]

PLAIN_SECONDS = 10.0  # between plain lines
_Item = TypeVar("_Item")


class Counter:
    """Counts what is done. Call it with the number that was done since the last call."""

    def __init__(
        self, description: str, total: int | None, done: int, unit: Unit, show: Callable[[Counter], None]
    ) -> None:
        self.description, self.total, self.done, self.unit, self._show = description, total, done, unit, show

    def __call__(self, advance: int = 1) -> None:
        self.done += advance
        self._show(self)

    def expect(self, total: int | None) -> None:
        """Say how much there is, once that is known."""
        self.total = total
        self._show(self)


class _PlainLines:
    """A line every few seconds, for logs."""

    def __init__(self, console: Console, done: int) -> None:
        self._console, self._first = console, done
        self._start = self._last = time.monotonic()

    def __call__(self, count: Counter) -> None:
        now = time.monotonic()
        if now - self._last < PLAIN_SECONDS:
            return
        self._last = now
        rate = (count.done - self._first) / (now - self._start)
        amount = _amount(count.done, count.total, count.unit, " of ")
        text = f"{count.description}: {amount}, {_speed(rate, count.unit)}"
        if rate and count.total is not None:
            text += f", {timedelta(seconds=round((count.total - count.done) / rate))} left"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_of(
    description: str,
    total: int | None,
    shown: ShowProgress = True,
    *,
    done: int = 0,
    unit: Unit = "images",
) -> Iterator[Counter]:
    """Show the progress of a block on stderr; a bar disappears when the block ends.

    Args:
        description: What is being done, e.g. "Computing features".
        total: How much there is to do; None if that is not known yet.
        shown: True, False, or a callback `(description, done, total)`.
        done: What an earlier run has done already.
        unit: What is counted.

    >>> with progress_of("Reading", 3, lambda what, done, total: print(what, done, "of", total)) as advance:
    ...     advance(2)
    Reading 2 of 3
    """
    console = Console(stderr=True)
    if shown is False:
        yield Counter(description, total, done, unit, lambda count: None)
    elif shown is not True:
        yield Counter(description, total, done, unit, lambda count: shown(count.description, count.done, count.total))
    elif is_live(console):
        columns = (TextColumn("{task.description}"), BarColumn(), _Amount(unit), _Speed(unit), TimeRemainingColumn())
        # Printed lines pass through the bar's console, or they would tear it; lines for a pipe must not.
        redirect = sys.stdout.isatty()
        with Progress(*columns, console=console, transient=True, redirect_stdout=redirect) as bar:
            # What an earlier run has done does not count for the speed.
            task = bar.add_task(description, total=total, completed=done)

            def show(count: Counter) -> None:
                bar.update(task, completed=count.done, total=count.total)

            yield Counter(description, total, done, unit, show)
    else:
        yield Counter(description, total, done, unit, _PlainLines(console, done))


def track(
    items: Iterable[_Item],
    description: str,
    total: int | None = None,
    shown: ShowProgress = True,
    *,
    unit: Unit = "images",
) -> Iterator[_Item]:
    """The items, with the progress of the loop over them. `total` defaults to their length, if they have one."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with progress_of(description, total, shown, unit=unit) as advance:
        for item in items:
            yield item
            advance()


def is_live(console: Console) -> bool:
    """Whether a bar can be shown: in a terminal, and in a notebook with ipywidgets."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


def report(text: str) -> None:
    """Print one line on stderr, without markup or wrapping."""
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def _amount(done: float, total: float | None, unit: Unit, of: str = "/") -> str:
    """
    >>> _amount(1200, 3000, "images"), _amount(5_000_000, None, "bytes")
    ('1,200/3,000', '5.0 MB')
    """
    if unit == "bytes":
        return f"{done / 1e6:,.1f}{'' if total is None else f'{of}{total / 1e6:,.1f}'} MB"
    return f"{done:,.0f}{'' if total is None else f'{of}{total:,.0f}'}"


def _speed(rate: float, unit: Unit) -> str:
    return f"{rate / 1e6:,.1f} MB/s" if unit == "bytes" else f"{rate:,.1f} {unit}/s"


class _Amount(ProgressColumn):
    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(_amount(task.completed, task.total, self.unit))


class _Speed(_Amount):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(_speed(speed, self.unit) if speed else "")
