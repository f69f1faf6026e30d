"""Files that are there as a whole or not at all, whenever the process or the machine stops."""

from __future__ import annotations

import os
import threading
from pathlib import Path


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
