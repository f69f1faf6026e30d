"""Measure speed and memory on this machine: times in turns, the memory of a process, and what both depend on."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from labelwise.core.environment import thread_count

_PACKAGES = ("labelwise", "torch", "torchvision", "timm", "pillow", "numpy", "onnxruntime", "openvino", "nncf")
_STATUS = Path("/proc/self/status")


class Timing(NamedTuple):
    """Milliseconds of a call."""

    median: float
    best: float


def in_turns(
    runs: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 2.0,
    rounds: int = 5,
    hopeless: float = float("inf"),
) -> dict[str, Timing]:
    """Time several functions in turns, so that other load on the machine slows all of them alike.

    Args:
        runs: The functions by name. Each is called once to warm up.
        seconds: How long to measure all of them together, at least.
        rounds: How often each is called, at least.
        hopeless: A function that takes so many times as long as the fastest, both in its first call, which may be slow
            for once, and in the next one, which is timed, is not called again.

    >>> times = in_turns({"a": lambda: None, "b": lambda: None}, seconds=0, rounds=3)
    >>> list(times), times["a"].best <= times["a"].median
    (['a', 'b'], True)
    """
    first = {name: _milliseconds(run) for name, run in runs.items()}
    end = time.perf_counter() + seconds
    second = {name: _milliseconds(run) for name, run in runs.items()}
    times = {name: [milliseconds] for name, milliseconds in second.items()}
    worthwhile = {
        name: run
        for name, run in runs.items()
        if any(some[name] <= hopeless * min(some.values()) for some in (first, second))
    }
    done = 1
    while done < rounds or time.perf_counter() < end:
        for name, run in worthwhile.items():
            times[name].append(_milliseconds(run))
        done += 1
    return {name: Timing(statistics.median(some), min(some)) for name, some in times.items()}


def _milliseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


@contextmanager
def work_of_others() -> Iterator[Callable[[], float | None]]:
    """The share of all cores that other processes used during the block; None where the system does not tell.

    >>> with work_of_others() as others:
    ...     time.sleep(0.05)
    >>> others() is None or 0 <= others() <= 1
    True
    """
    found: list[float | None] = []
    before, start = _seconds_of_others(), time.perf_counter()
    yield lambda: found[0]
    after, seconds = _seconds_of_others(), time.perf_counter() - start
    if before is None or after is None:
        found.append(None)
    else:
        share = (after - before) / seconds / (os.cpu_count() or 1)
        found.append(round(min(1.0, max(0.0, share)), 2))  # the system counts in hundredths of a second


def _seconds_of_others() -> float | None:
    """The CPU time of all processes but this one since the machine was started."""
    try:
        ticks = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = ticks[3] + ticks[4]  # idle, and waiting for a disk
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK") - time.process_time()


def machine() -> dict[str, Any]:
    """What measured times depend on: the machine and the versions. No host name, no path.

    >>> sorted(machine())
    ['cores', 'load', 'processor', 'system', 'threads', 'versions']
    """
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": thread_count(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,  # before the measurement
        "versions": {name: found for name in _PACKAGES if (found := package_version(name))},
    }


def processor() -> str:
    """The processor's name and its widest vectors, which decide its speed."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = facts.get("flags", "").split()
    widest = next((name for name in ("avx512f", "avx2") if name in flags), "")
    return " ".join(part for part in (facts.get("model name", platform.machine()), widest) if part)


def package_version(package: str) -> str:
    """Empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


# Memory, from Linux's /proc; on other systems nothing is known or limited.


def memory_now() -> int | None:
    """Bytes of memory that this process holds (its resident set).

    >>> memory_now() is None or memory_now() > 1_000_000
    True
    """
    return _status("VmRSS")


def memory_peak() -> int | None:
    """The most it has held since it started, or since `forget_peak`. Not `ru_maxrss`, which a process inherits."""
    return _status("VmHWM")


def forget_peak() -> None:
    with contextlib.suppress(OSError):  # a sandbox may forbid it: then the peak counts from the process's start
        Path("/proc/self/clear_refs").write_text("5")


def memory_of(process: int) -> int:
    """Bytes of memory that another process and all below it hold; pages that they share count for each."""
    try:
        held = int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        children = [path.read_text().split() for path in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:  # it has just ended
        return 0
    return held + sum(memory_of(int(child)) for some in children for child in some)


def limit_growth(more: int) -> None:
    """Let this process grow by `more` bytes. Asking for more fails, instead of slowing the whole machine down."""
    size = _status("VmSize")
    if size is None:
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + more, hard))


def _status(field: str) -> int | None:
    if not _STATUS.exists():
        return None
    found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), flags=re.MULTILINE)
    return None if found is None else int(found[1]) * 1024
