"""Files that are there as a whole or not at all, whenever the process or the machine stops."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import IO


def follow_umask(path: Path) -> None:
    """Give a file the permissions of an ordinary new one; safetensors and temporary files keep others out."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the target, then rename; what a killed process leaves behind starts with a dot and ends in .part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave the new name on an empty file
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def cache_folder() -> Path:
    """The folder that the variable LABELWISE_CACHE names, else ~/.cache/labelwise."""
    named = os.environ.get("LABELWISE_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "labelwise"


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
