"""Files and folders that are complete or absent whenever the process or the machine stops, locks, and digests."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO

from labelwise.core.errors import LabelwiseError

WRITTEN_BY = "written by labelwise"  # in pages and pictures
_NEAR = 8192  # bytes
# How evaluate (also zero-shot), data inspect, bench, explain (--check, --experts), report and sweep begin.
_RESULT = re.compile(rb'\{\n "(mAP|zsl|source|rows|model|data|labelwise|runs)": ')


def atomic_write(path: str | Path, content: bytes | str | Callable[[Path], object]) -> None:
    """Write a file so that a reader sees all of the new content or all of the old.

    The content goes to a file next to the target, to the disk, and then gets the target's name. What a killed process
    leaves behind starts with a dot and ends in `.part`. A link is followed; a device or pipe is written directly.

    Args:
        path: The file; missing folders are created.
        content: Bytes, text (written as UTF-8), or a function that writes the file whose path it is given.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "new" / "a.txt"
    >>> atomic_write(file, "one\\n")
    >>> atomic_write(file, lambda draft: draft.write_text("two"))
    >>> file.read_text(), len(list(file.parent.iterdir()))
    ('two', 1)
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file() and not target.is_dir():  # /dev/stdout cannot be replaced
        return _fill(target, content)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The name may be as long as the file system allows: only its beginning is repeated.
    draft = target.with_name(f".{target.name[:40]}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        draft.touch()
        # The mode of the old file, or what the umask allows; safetensors would keep everybody else out.
        mode = (target if target.exists() else draft).stat().st_mode
        _fill(draft, content)
        draft.chmod(mode)
        with draft.open("rb") as file:
            os.fsync(file.fileno())  # or a power cut could leave the new name on an empty file
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def check_replaceable(path: str | Path) -> None:
    """Raise an error if a result must not be written to `path`: a folder, or a file that is not a result of ours.

    Our JSON is known by its first key, pages and pictures hold `WRITTEN_BY` near their beginning or end. An empty file
    has nothing to lose, and a pipe such as /dev/stdout keeps nothing.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "test.json"
    >>> check_replaceable(file)
    >>> _ = file.write_text('{\\n "mAP": 90.1\\n}')
    >>> check_replaceable(file)
    """
    path = Path(path)
    if path.is_dir():
        raise LabelwiseError(f"{str(path)!r} is a folder; name a file")
    if not path.is_file() or not (size := path.stat().st_size):
        return
    with path.open("rb") as file:
        start = file.read(_NEAR)
        file.seek(max(0, size - _NEAR))
        text = (start + file.read()).lower()
    marks = (WRITTEN_BY.encode(encoding) for encoding in ("ascii", "utf-16-be"))  # the second one by Pillow in a PDF
    if not _RESULT.match(start) and not any(mark in text for mark in marks):
        raise LabelwiseError(
            f"{str(path)!r} is not known to be written by labelwise, and is not replaced; name another file"
        )


def remove_drafts(folder: Path) -> None:
    """Delete what killed processes left of their files, in a folder that nobody else writes to now."""
    for draft in folder.glob(".*.part"):
        draft.unlink(missing_ok=True)


def _fill(file: Path, content: bytes | str | Callable[[Path], object]) -> None:
    if callable(content):
        content(file)
    else:
        file.write_bytes(content.encode() if isinstance(content, str) else content)


def replace_folder(
    folder: Path, write: Callable[[Path], None], *, replaced: Callable[[str], bool] = lambda name: True
) -> None:
    """Let `write` fill a new folder next to the target, then swap the two.

    Args:
        folder: The target; a link is followed.
        write: Fills the folder it is given. If it raises, the target stays as it was.
        replaced: Whether an entry of the old folder, by its name, belongs to what is replaced. Other entries, such as
            notes that somebody put there, move to the new folder.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name[:40]}-{uuid.uuid4().hex[:8]}")
    fresh.mkdir()
    try:
        write(fresh)
        swap(fresh, folder) if folder.exists() else os.replace(fresh, folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if fresh.exists():  # it is the old folder now
        for path in fresh.iterdir():
            if not replaced(path.name):
                os.replace(path, folder / path.name)
        shutil.rmtree(fresh)


_AT_FDCWD, _EXCHANGE = -100, 2  # of Linux


def swap(one: Path, other: Path) -> None:
    """Exchange two folders: in one step on Linux, so that neither name is ever missing; elsewhere in three renames."""
    exchange = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if exchange and exchange(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return
    aside = one.with_name(one.name + "-old")
    os.replace(other, aside)
    try:
        os.replace(one, other)
    except OSError:
        os.replace(aside, other)
        raise
    os.replace(aside, one)


def lock(file: IO[str], *, wait: bool, byte: int | None = None) -> bool:
    """Lock an open file against other processes, until it is closed or the process ends.

    Returns False on a system or a file system without locks. Raises BlockingIOError if another process has the lock
    and we do not `wait`. Not flock: forked workers would inherit it and keep it after this process has died.

    Args:
        file: Open for writing.
        wait: Until whoever has the lock gives it up.
        byte: Lock only this one, which need not exist, so that one file holds as many locks as there are things to
            lock. Default: the whole file.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        kind = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        fcntl.lockf(file, kind, *(() if byte is None else (1, byte)))
    except (BlockingIOError, PermissionError):  # POSIX allows either for "somebody else has it"
        raise BlockingIOError from None
    except OSError:  # a file system without locks
        return False
    return True


def cache_folder() -> Path:
    """The folder that the environment variable LABELWISE_CACHE names, else ~/.cache/labelwise."""
    named = os.environ.get("LABELWISE_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "labelwise"


def sha256(*parts: str | bytes | memoryview | Path) -> hashlib._Hash:
    """The digest of all parts, one after the other; of a Path, the content of the file.

    >>> sha256("ab", b"c").hexdigest() == sha256("abc").hexdigest()
    True
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with part.open("rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
        else:
            digest.update(part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part)
    return digest
