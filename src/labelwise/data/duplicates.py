"""Find files with the same content."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

# How a caller shows progress: gets the items, what is done with them and how many there are, and gives the items back.
Track = Callable[[Iterable[int], str, int], Iterable[int]]


def quietly(items: Iterable[int], description: str, total: int) -> Iterable[int]:
    return items


def duplicate_groups(paths: Sequence[str], track: Track = quietly) -> list[list[int]]:
    """Groups of two and more positions in `paths` whose files are equal byte by byte. Only files of equal size are
    read; what is not there is left out."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for place, path in enumerate(paths):
        try:
            by_size[os.stat(path).st_size].append(place)
        except OSError:
            continue
    candidates = [place for places in by_size.values() if len(places) > 1 for place in places]
    by_content: dict[bytes, list[int]] = defaultdict(list)
    for place in track(candidates, "Comparing files of equal size", len(candidates)):
        with suppress(OSError):  # a folder, or a file that may not be read: decoding tells
            by_content[_digest(paths[place])].append(place)
    return sorted(sorted(places) for places in by_content.values() if len(places) > 1)


def _digest(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
