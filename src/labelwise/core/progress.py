"""How far a long computation is: a bar in a terminal or a notebook, plain lines elsewhere, or your own callback."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, TypeVar

from labelwise.core.terminal import open_console, say

if TYPE_CHECKING:
    # At run time only where progress is shown: a single image does not wait for it.
    from rich.console import Console

# What every function with an argument `progress` takes: whether to show it, or a function that is told what is being
# done, how much of it is done, and how much there is (None: not known yet).
ShowProgress = bool | Callable[[str, int, int | None], None]
Unit = Literal["images", "files", "bytes", "runs", "steps"]

PLAIN_SECONDS = 10.0  # between plain lines
_Item = TypeVar("_Item")


@dataclass
class Counter:
    """Counts what is done. Call it with the number that was done since the last call."""

    description: str
    total: int | None
    done: int
    unit: Unit
    show: Callable[[Counter], None]

    def __post_init__(self) -> None:
        self._first, self._start = self.done, time.monotonic()  # an earlier run does not count for the speed

    def __call__(self, advance: int = 1) -> None:
        self.done += advance
        self.show(self)

    def expect(self, total: int | None) -> None:
        """Say how much there is, once that is known."""
        self.total = total
        self.show(self)

    @property
    def rate(self) -> float:
        """How much is done in a second."""
        return (self.done - self._first) / max(time.monotonic() - self._start, 1e-9)

    @property
    def left(self) -> str:
        """The time that the rest takes, such as "0:01:20 left"; "" if that cannot be known."""
        if not self.rate or self.total is None:
            return ""
        return f"{timedelta(seconds=round((self.total - self.done) / self.rate))} left"

    def __str__(self) -> str:
        """
        >>> print(Counter("Reading", 3000, 1200, "images", print), Counter("Fetching", None, 5_000_000, "bytes", print))
        1,200 of 3,000, 0.0 images/s 5.0 MB, 0.0 MB/s
        """
        scale, unit, digits = (1e6, "MB", 1) if self.unit == "bytes" else (1, self.unit, 0)
        total = "" if self.total is None else f" of {self.total / scale:,.{digits}f}"
        amount = f"{self.done / scale:,.{digits}f}{total}{' MB' if unit == 'MB' else ''}"
        return f"{amount}, {self.rate / scale:,.1f} {unit}/s"


class _PlainLines:
    """A line every few seconds, for logs."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, count: Counter) -> None:
        now = time.monotonic()
        if now - self._last < PLAIN_SECONDS:
            return
        self._last = now
        say(f"{count.description}: {', '.join(filter(None, [str(count), count.left]))}", stderr=True)


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
    if shown is not True:

        def tell(count: Counter) -> None:
            if shown is not False:
                shown(count.description, count.done, count.total)

        yield Counter(description, total, done, unit, tell)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = open_console(stderr=True)
    if is_live(console):
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
        )
        # Printed lines pass through the bar's console, or they would tear it; lines for a pipe must not.
        redirect = sys.stdout.isatty()
        with Progress(*columns, console=console, transient=True, redirect_stdout=redirect) as bar:
            task = bar.add_task(description, total=total, completed=done, status="")

            def show(count: Counter) -> None:
                bar.update(task, completed=count.done, total=count.total, status=str(count))

            yield Counter(description, total, done, unit, show)
    else:
        yield Counter(description, total, done, unit, _PlainLines())


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
