"""`lw.cache`: what labelwise keeps on disk to save time, how large it is, and emptying it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labelwise.api.inputs import require_choice
from labelwise.core.errors import counted
from labelwise.core.files import cache_folder

CacheName = Literal["features", "engines", "models", "streams", "all"]
HOLDS = {
    "features": "feature maps of images, for training on frozen backbones",
    "engines": "converted networks and the measured speeds of engines",
    "models": "models that large jobs copied to this machine",
    "streams": "indexes and copies of shards",
}


@dataclass(frozen=True)
class CachePart:
    """One kind of files in the cache. All of them can be made again."""

    name: str
    folder: Path
    files: int
    bytes: int

    def __str__(self) -> str:
        """
        >>> print(CachePart("features", Path("/tmp/features"), 3, 1_250_000_000))
        features   1.25 GB in 3 files   feature maps of images, for training on frozen backbones
        """
        size = f"{self.bytes / 1e9:.2f} GB" if self.bytes >= 1e9 else f"{self.bytes / 1e6:.1f} MB"
        return f"{self.name:8}   {size} in {counted(self.files, 'file')}   {HOLDS[self.name]}"


@dataclass(frozen=True, repr=False)
class Cache:
    """The cache folder and its parts."""

    folder: Path
    parts: tuple[CachePart, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def __repr__(self) -> str:
        return "\n".join([f"<Cache: {self.folder}>", *(f"  {part}" for part in self.parts)])


def cache(clear: CacheName | None = None) -> Cache:
    """Show where the cache is and how large its parts are, or empty one of them.

    What is deleted is computed again when it is needed: at any time, but best while nothing is training.

    Args:
        clear: The part to empty, or `all`. Only folders that labelwise made are deleted.

    Returns:
        The cache as it was found; with `clear`, only the parts that were emptied.

    Example:
        >>> import labelwise as lw
        >>> lw.cache().bytes  # doctest: +SKIP
        1250000000
        >>> lw.cache(clear="features")  # doctest: +SKIP
    """
    require_choice(clear=(clear, CacheName))
    folder = cache_folder()
    names = HOLDS if clear in (None, "all") else [clear]
    found = Cache(folder, tuple(_part(name, folder / name) for name in names))
    if clear is not None:
        for part in found.parts:
            for entry in _entries(part.folder):
                shutil.rmtree(entry)
    return found


def _part(name: str, folder: Path) -> CachePart:
    sizes = [size for entry in _entries(folder) for size in _file_sizes(entry)]
    return CachePart(name, folder, len(sizes), sum(sizes))


def _file_sizes(folder: Path) -> Iterator[int]:
    for parent, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):  # a draft that has just been finished
                yield os.lstat(os.path.join(parent, file)).st_size


def _entries(folder: Path) -> Iterator[Path]:
    """Folders that are named by a digest. Others are somebody's own: the variable may name any folder."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if re.fullmatch("[0-9a-f]{32}", path.name) and path.is_dir() and not path.is_symlink():
            yield path
