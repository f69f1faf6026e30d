"""From what a table calls an image to the file: as written, without its ending, below a folder, on another machine."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Any
from unicodedata import normalize
from urllib.parse import parse_qs, unquote, urlsplit

from labelwise.core.errors import LabelwiseError, counted, shortened
from labelwise.data.decode import images_below
from labelwise.data.images import is_image

_SAMPLED = 20  # cells that decide what a column holds
_MOST_FILES = 300_000  # that are looked through; a table may lie in a home folder
_NOT_IN_NAMES = re.compile("[\0\ud800-\udfff]")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_RAW = re.compile(r"\.(nef|nrw|cr2|cr3|arw|dng|raf|orf|rw2|pef)$", re.IGNORECASE)  # developed: DSC_1.NEF is DSC_1.jpg
_UPLOADED = re.compile(r"[0-9a-f]{8}-(?=.)")  # Label Studio's addition to the name of an uploaded file


class ImageFinder:
    """Finds the images of a table below a folder.

    Args:
        folder: The table's.
        root: What image paths are relative to instead, if given.
    """

    def __init__(self, folder: str, root: str | None) -> None:
        self.base, self._moved = (folder, False) if root is None else (root, True)

    def path(self, cell: Any, where: str) -> str:
        """The path that a cell names, be it there or not.

        >>> ImageFinder("data", None).path("img/1.jpg", ""), ImageFinder("data", "/photos").path("img/1.jpg", "")
        ('data/img/1.jpg', '/photos/img/1.jpg')
        """
        text = _text(cell, where)
        if os.sep == "/" and "\\" in text and ("/" not in text or _DRIVE.match(text)):
            text = text.replace("\\", "/")  # written on Windows
        if not (_DRIVE.match(text) or os.path.isabs(text)):
            return os.path.join(self.base, text)
        if not self._moved:
            return text
        # The images moved: the longest end of the old path that exists below the new root.
        parts = text.split("/")[1:]
        ends = (os.path.join(self.base, *parts[n:]) for n in range(len(parts)))
        return next((end for end in ends if os.path.exists(end)), os.path.join(self.base, parts[-1]))

    def share(self, cells: Sequence[Any]) -> float:
        """The share of cells that are images, as written or in any other way, of some of them."""
        texts = [str(cell).strip() for cell in sample_of(cells) if _is_name(cell)]
        written = sum(os.path.isfile(self.path(text, "")) for text in texts)
        return (written or sum(self.find(text) is not None for text in texts)) / max(1, len(sample_of(cells)))

    def paths(self, cells: Iterable[tuple[str, Any]]) -> tuple[list[str], str]:
        """The path of the image in each cell, and an example of what had to be assumed ("": nothing).

        Cells come with their places, for messages. Images that are nowhere to be found keep the path as written.
        """
        cells = list(cells)
        paths = [self.path(cell, place) for place, cell in cells]
        if any(os.path.isfile(path) for path in sample_of(paths)):
            # As written, but for names whose accents are coded in another way: macOS writes e and ´ for é.
            rows = [row for row, path in enumerate(paths) if not path.isascii() and not os.path.isfile(path)]
        elif any(self.find(str(cell).strip()) is not None for _, cell in sample_of(cells)):
            rows = list(range(len(paths)))
        else:
            return paths, ""
        taken: dict[str, str] = {}
        first = ""
        for row in rows:
            place, cell = cells[row]
            found = self.find(str(cell).strip(), place)
            if found is None:
                continue
            if taken.setdefault(found, paths[row]) != paths[row]:
                raise LabelwiseError(
                    f"{place}: {cell!r} and another image are both found as {found!r}; correct the paths, or say where "
                    "the images are",
                    options={"root": ...},
                )
            first = first or f"{str(cell).strip()!r} is {found}"
            paths[row] = found
        return paths, first

    def find(self, text: str, where: str = "") -> str | None:
        """The file below the folder that has this name, with or without its ending; of several, the one whose folders
        agree best with the path."""
        folders, name = _folders_and_name(text)
        names = (name, _UPLOADED.sub("", name), _RAW.sub("", name))
        candidates = next((found for each in names if (found := self._by_name.get(_key(each)))), [])
        if len(candidates) > 1:
            exact = [path for path in candidates if os.path.basename(path) == name]
            candidates = exact or candidates
            agreeing = [_common_end(folders, _folders_and_name(path)[0]) for path in candidates]
            best = max(agreeing)
            candidates = [path for path, count in zip(candidates, agreeing, strict=True) if count == best]
        if len(candidates) > 1:
            if where:
                raise LabelwiseError(
                    f"{where}: {text!r} may be any of {counted(len(candidates), 'file')} ({shortened(candidates, 2)}); "
                    "write the folder into the path, or say where the images are",
                    options={"root": ...},
                )
            return candidates[0]  # to recognise a column, any will do
        return candidates[0] if candidates else None

    @cached_property
    def _by_name(self) -> Mapping[str, list[str]]:
        """Image files below the folder, by their names with and without ending."""
        found: dict[str, list[str]] = defaultdict(list)
        for path in islice(images_below(self.base or "."), _MOST_FILES):
            path = path if self.base else os.path.relpath(path)
            name = os.path.basename(path)
            found[_key(name)].append(path)
            found[_key(os.path.splitext(name)[0])].append(path)
        return found


def folder_of_missing(missing: Sequence[str], source: str) -> str | None:
    """The folder in which images that are not where a table says lie: near the table, or in the current folder. As a
    table's `root` it leads to them."""
    beside = os.path.dirname(source)
    near = [beside, os.path.join(beside, os.pardir)] if os.path.exists(source) else []
    sample = sample_of(missing)
    for base in dict.fromkeys([*near, ""]):
        finder = ImageFinder(base, None)
        pairs = [(path, found) for path in sample if (found := finder.find(path)) is not None]
        # Only under their very names: what is similar may be another image.
        pairs = [(path, found) for path, found in pairs if os.path.basename(path) == os.path.basename(found)]
        if 2 * len(pairs) >= len(sample) > 0:
            here, there = (path.split(os.sep) for path in pairs[0])
            folder = os.sep.join(there[: len(there) - 1 - _common_end(here[:-1], there[:-1])])
            return os.path.normpath(folder) if folder else os.curdir
    return None


def sample_of(cells: Sequence[Any]) -> Sequence[Any]:
    """Some of them, evenly."""
    return cells[:: max(1, len(cells) // _SAMPLED)][:_SAMPLED]


def _is_name(cell: Any) -> bool:
    if isinstance(cell, int) and not isinstance(cell, bool):
        return True
    return isinstance(cell, str) and bool(cell.strip()) and len(cell) < 1000 and not _NOT_IN_NAMES.search(cell)


def _text(cell: Any, where: str) -> str:
    if cell is None or cell == "" or str(cell).isspace():
        raise LabelwiseError(f"{where}: the image column is empty; fill it in, or delete the row")
    if isinstance(cell, os.PathLike) or (isinstance(cell, int) and not isinstance(cell, bool)):
        cell = str(cell)
    if not isinstance(cell, str):
        raise LabelwiseError(f"{where}: the image column holds a {type(cell).__name__}, not a path")
    if "\0" in cell:
        raise LabelwiseError(f"{where}: the path of the image holds a NUL character; correct it")
    try:
        cell.encode("utf-8", "surrogateescape")  # file names need not be valid UTF-8
    except UnicodeEncodeError:
        raise LabelwiseError(f"{where}: the path of the image holds half of a character (U+D800 to U+DFFF)") from None
    return cell.strip()


def _folders_and_name(text: str) -> tuple[list[str], str]:
    """
    >>> _folders_and_name("https://host/data/local-files/?d=my%20photos/1.jpg")
    (['my photos'], '1.jpg')
    """
    if "?d=" in text or "://" in text:  # Label Studio's local files; any address
        with suppress(ValueError):  # http://[…: no address, so a name like any other
            address = urlsplit(text)
            text = parse_qs(address.query).get("d", [unquote(address.path)])[0]
    *folders, name = re.split(r"[\\/]+", text)
    return folders, name


def _key(name: str) -> str:
    """Names with the same key may be the same image: accents, case and leading zeros of a number do not matter."""
    plain = normalize("NFC", name).casefold()
    stem, suffix = os.path.splitext(plain) if is_image(plain) else (plain, "")
    return (stem.lstrip("0") or "0" if stem.isdigit() else stem) + suffix


def _common_end(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = zip(reversed(one), reversed(other), strict=False)
    return next((count for count, (a, b) in enumerate(pairs) if _key(a) != _key(b)), min(len(one), len(other)))
