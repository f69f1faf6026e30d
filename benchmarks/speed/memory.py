"""How much memory this process takes, and a limit to it. From Linux's /proc; elsewhere nothing is known or limited."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def memory_now() -> int | None:
    """Bytes of memory that the process holds (its resident set).

    >>> memory_now() is None or memory_now() > 1_000_000
    True
    """
    return _status("VmRSS")


def memory_peak() -> int | None:
    """The most it has held since it started, or since `forget_peak`. Not `ru_maxrss`, which a process inherits from
    the one that started it."""
    return _status("VmHWM")


def memory_of(process: int) -> int:
    """Bytes of memory that another process and all below it hold; pages that they share count for each."""
    try:
        held = int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        children = [path.read_text().split() for path in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:  # it has just ended
        return 0
    return held + sum(memory_of(int(child)) for some in children for child in some)


def forget_peak() -> None:
    with contextlib.suppress(OSError):  # a sandbox may forbid it: then the peak counts from the process's start
        _CLEAR.write_text("5")


def limit_growth(more: int) -> None:
    """Let the process grow by `more` bytes. What it asks for beyond that fails with an error of its own, instead of
    making the whole machine short of memory."""
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
