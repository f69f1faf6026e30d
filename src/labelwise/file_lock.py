"""Locks between processes, on an open file: POSIX locks, which worker processes do not inherit, so that a killed
process lets go at once. Where there are none (Windows, some network file systems) nobody keeps anybody out."""

from __future__ import annotations

from typing import IO


def lock(file: IO[str], *, wait: bool) -> bool:
    """Until the file is closed nobody else gets the lock. False where there are no locks; BlockingIOError if another
    process has it and we do not `wait`."""
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.lockf(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows either for "somebody else has it"
        raise BlockingIOError from None
    except OSError:  # a file system without locks
        return False
    return True
