"""Columns of strings without one Python object per row.

Nine million paths as a list of `str` take about a gigabyte, and every DataLoader worker that is forked copies the pages
again because reading a string changes its reference count. Two flat arrays do neither.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from labelwise.core.arrays import Ints, row_pointers

_TAKE_BLOCK = 100_000  # rows gathered at once: bounds the index array that `take` needs


class StringColumn(Sequence[str]):
    """What columns of strings share: slices are lists, and a column equals any sequence of the same strings."""

    def _get(self, index: int) -> str:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._get(i) for i in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self._get(position)

    def __iter__(self) -> Iterator[str]:
        return (self._get(i) for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # compares by content, like a list

    def __repr__(self) -> str:
        shown = ", ".join(repr(text) for text in self[:3])
        return f"<{len(self)} strings: {shown}{', ...' if len(self) > 3 else ''}>"


class PackedStrings(StringColumn):
    """Any strings, as one UTF-8 buffer and the offsets into it.

    >>> PackedStrings(["a.jpg", "b/ü.jpg"])[1]
    'b/ü.jpg'
    """

    def __init__(self, strings: Iterable[str]) -> None:
        buffer, ends = bytearray(), array("q", [0])
        for text in strings:
            buffer += text.encode("utf-8", "surrogateescape")  # file names need not be valid UTF-8
            ends.append(len(buffer))
        self._buffer = np.frombuffer(bytes(buffer), np.uint8)
        self._offsets = np.asarray(ends, np.int64)  # [M+1]

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def _get(self, index: int) -> str:
        start, end = self._offsets[index : index + 2]
        return self._buffer[start:end].tobytes().decode("utf-8", "surrogateescape")

    def take(self, rows: Ints) -> PackedStrings:
        """The strings of `rows`, packed again."""
        lengths = self._offsets[rows + 1] - self._offsets[rows]
        offsets = row_pointers(lengths)
        buffer = np.empty(offsets[-1], np.uint8)
        for first in range(0, len(rows), _TAKE_BLOCK):
            block = slice(first, first + _TAKE_BLOCK)
            shift = self._offsets[rows[block]] - offsets[:-1][block]  # where each string moves from
            target = np.arange(offsets[first], offsets[min(first + _TAKE_BLOCK, len(rows))])
            buffer[target] = self._buffer[target + np.repeat(shift, lengths[block])]
        packed = PackedStrings(())
        packed._buffer, packed._offsets = buffer, offsets
        return packed


class CodedStrings(StringColumn):
    """Few different strings, many rows: the different ones in order of appearance, and one byte or two per row.

    >>> CodedStrings(["train", "val", "train"]).names
    ('train', 'val')
    """

    def __init__(self, strings: Iterable[str]) -> None:
        code_of: dict[str, int] = {}
        self.codes = np.fromiter((code_of.setdefault(text, len(code_of)) for text in strings), np.int16)
        self.names = tuple(code_of)

    def __len__(self) -> int:
        return len(self.codes)

    def _get(self, index: int) -> str:
        return self.names[int(self.codes[index])]

    def rows(self, names: Iterable[str]) -> Ints:
        """The rows that hold one of `names`, in order."""
        wanted = [self.names.index(name) for name in names if name in self.names]
        return np.flatnonzero(np.isin(self.codes, np.array(wanted, np.int16)))

    def take(self, rows: Ints) -> CodedStrings:
        taken = CodedStrings(())
        codes = self.codes[rows]
        used = np.unique(codes)  # names no row has any more are dropped; the order stays
        taken.names = tuple(self.names[code] for code in used)
        taken.codes = np.searchsorted(used, codes).astype(np.int16)
        return taken
