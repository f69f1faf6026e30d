"""Times of several ways to do the same thing, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

Run = Callable[[], object]


class Timing(NamedTuple):
    """Milliseconds of a call."""

    median: float
    best: float


def in_turns(runs: Mapping[str, Run], *, seconds: float = 2.0, rounds: int = 5) -> dict[str, Timing]:
    """Each run is called once to warm up, then all of them one after the other, for `rounds` rounds at least and for
    about `seconds`: other load on the machine meets them all.

    >>> times = in_turns({"a": lambda: None, "b": lambda: None}, seconds=0, rounds=3)
    >>> list(times), times["a"].best <= times["a"].median
    (['a', 'b'], True)
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds
    done = 0
    while done < rounds or time.perf_counter() < end:
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)
        done += 1
    return {name: Timing(statistics.median(some), min(some)) for name, some in times.items()}
