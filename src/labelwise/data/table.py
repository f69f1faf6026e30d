"""What every reader returns: images, label names, splits, and the value of each label of each image."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from labelwise.core.arrays import Columns, Ints, Mask, Targets, row_pointers
from labelwise.core.errors import LabelwiseError, counted, tell, unknown_name
from labelwise.core.tables import html_table, to_frame
from labelwise.data.strings import CodedStrings, PackedStrings

if TYPE_CHECKING:
    import pandas

PRESENT, ABSENT, UNKNOWN = 1, 0, -1
VALUES = {"present": PRESENT, "absent": ABSENT, "unknown": UNKNOWN}

_DIGITS = re.compile(r"([0-9]+)")
_ROWS_SHOWN = 10  # in a notebook
SPLITS = ("train", "val", "test")  # the usual ones
SPLIT_ALIASES = {"training": "train", "validation": "val", "valid": "val", "dev": "val", "testing": "test"}


def canonical_split(name: str) -> str:
    """One spelling per split, or of several that are joined.

    >>> [canonical_split(name) for name in ("Training", "train+validation", "dev", "test", "fold 3", "")]
    ['train', 'train+val', 'val', 'test', 'fold 3', '']
    """
    parts = (part.strip().lower() for part in name.split("+"))
    return "+".join(SPLIT_ALIASES.get(part, part) for part in parts)


def natural_key(name: str) -> tuple[list[Any], str]:
    """Sorts names as people do: numbers by their value.

    >>> sorted(["label10", "label2", "label1b", "Label1"], key=natural_key)
    ['Label1', 'label1b', 'label2', 'label10']
    """
    parts: list[Any] = _DIGITS.split(name)  # words and numbers in turns
    for place in range(1, len(parts), 2):
        digits = parts[place].lstrip("0")
        parts[place] = len(digits), digits  # not int(): Python converts no more than some thousands of digits
    return parts, name


class SplitTable:
    """What tables of all kinds know of their splits."""

    source: str

    @property
    def all_splits(self) -> Sequence[str]:
        """The splits there are, in any order."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def select(self, split: str) -> Self:
        """The images of a split, or of several: `train`, `train+val`, `trainval`."""
        raise NotImplementedError

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits there are: train, val, test first, then the others as they appear; "" for images without one."""
        names = self.all_splits
        usual = tuple(name for name in SPLITS if name in names)
        return usual + tuple(name for name in names if name not in usual)

    def wanted_splits(self, split: str, option: str | None = None) -> list[str]:
        """The splits that a name means: `train`, `train+val`, `trainval`; an error if there is no such split, which
        names the `option` that chooses another."""
        names = canonical_split(split).split("+")
        if "trainval" in names and "trainval" not in self.split_names:
            names = ["train", "val", *(name for name in names if name not in ("train", "val", "trainval"))]
        for name in names:
            if name not in self.split_names and not any(self.split_names):
                whole = {"split": "all"} if option == "split" else {}
                raise LabelwiseError(
                    f"{self.source} has no splits, so there is no {name!r}; make them (labelwise data split)"
                    + " or take all images" * bool(whole),
                    options=whole,
                )
            if name not in self.split_names:
                raise unknown_name("split", name, filter(None, self.split_names), self.source, option=option)
        return names

    def part(self, split: str, option: str = "split") -> Self:
        """As `select`; `all` is every image, unless a split is called so. The `option` is named in errors."""
        if split == "all" and "all" not in self.split_names:
            return self
        self.wanted_splits(split, option)
        return self.select(split)

    def chosen_split(self, split: str | None) -> str:
        """The split to measure on: the given one, else `test`, else `all`, which is told."""
        if split is not None or self.split_names != ("",):
            return canonical_split(split or "test")
        tell(f"{self.source or 'the table'} has no splits: all {counted(len(self), 'image')} are used")
        return "all"


@dataclass(frozen=True, eq=False)
class LabelTable(SplitTable):
    """Images with their labels and splits: the value of each label of each image is 1 (present), 0 (absent) or -1
    (unknown).

    Values are stored sparsely by rows (CSR): only listed entries take memory, all others have the value `fill`. Nine
    million images x 9,600 labels fit. Make one with `open_data`, `from_lists` or `from_dense`.

    Args:
        labels: N unique names: the column order of the targets.
        images: M paths, absolute or relative to the current folder.
        splits: M names: "train", "val", "test", ... or "" for none.
        indptr: [M+1]; the entries of row i are indptr[i]:indptr[i+1].
        columns: [nnz], unique in each row.
        values: [nnz].
        fill: The value of what is not listed: 0 (COCO, VOC), or -1 if absence was not checked (Open Images).
        source: The data argument, for messages.
        single_label: Whether each image has exactly one label (ImageFolder, ImageNet).
        label_sets: Named sets of labels, e.g. "seen" and "unseen" (zero-shot).
        lines: [M]; the line of each image in the file it was read from, if any.
        notes: What its reader assumed, one line each.

    >>> table = LabelTable.from_lists(["a.jpg", "b.jpg"], [["dog", "cat"], []], splits=["train", "test"])
    >>> table.labels, table.target(0).tolist(), table.select("test").images[0]
    (('cat', 'dog'), [1, 1], 'b.jpg')
    """

    labels: tuple[str, ...]
    images: PackedStrings  # any strings are packed
    splits: CodedStrings  # any strings are coded
    indptr: Ints
    columns: Columns
    values: Targets
    fill: int = ABSENT
    source: str = ""
    single_label: bool = False
    label_sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lines: Ints | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, dtype in (("indptr", np.int64), ("columns", np.int32), ("values", np.int8)):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype))
        object.__setattr__(self, "labels", tuple(self.labels))
        if not isinstance(self.images, PackedStrings):
            object.__setattr__(self, "images", PackedStrings(self.images))
        if not isinstance(self.splits, CodedStrings):
            object.__setattr__(self, "splits", _coded(self.splits))
        self._check()

    def _check(self) -> None:
        check_unique(self.labels, f"{self.source}: " if self.source else "")
        if len(self.splits) != len(self) or len(self.indptr) != len(self) + 1:
            raise ValueError(f"{len(self)} images, {len(self.splits)} splits, {len(self.indptr)} row pointers")
        if len(self.columns) != self.indptr[-1] or len(self.values) != self.indptr[-1]:
            raise ValueError(f"{self.indptr[-1]} entries, {len(self.columns)} columns, {len(self.values)} values")
        if len(self.columns) and not 0 <= self.columns.min() <= self.columns.max() < len(self.labels):
            raise ValueError(f"a column is outside 0..{len(self.labels) - 1}")
        if self.fill not in (ABSENT, UNKNOWN) or not np.isin(self.values, (PRESENT, ABSENT, UNKNOWN)).all():
            raise ValueError("values are 1 (present), 0 (absent) or -1 (unknown); fill is 0 or -1")

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        splits = ", ".join(f"{name or 'no split'} {len(self.rows(name))}" for name in self.split_names)
        source = f" {self.source!r}" if self.source else ""
        size = f"{counted(len(self), 'image', 'images')}, {counted(len(self.labels), 'label', 'labels')}"
        return f"<LabelTable{source}: {size}; {splits}>"

    def _repr_html_(self) -> str:
        shown = range(min(len(self), _ROWS_SHOWN))
        rows = [(self.images[row], self.splits[row], ", ".join(self.present(row))) for row in shown]
        return html_table(["image", "split", "labels"], rows, caption=repr(self))

    def to_pandas(self) -> pandas.DataFrame:
        """One row per image: its split, and for each label 1 (present), 0 (absent) or -1 (unknown)."""
        targets = self.targets().tolist()
        return to_frame(
            [
                {"image": image, "split": split, **dict(zip(self.labels, values, strict=True))}
                for image, split, values in zip(self.images, self.splits, targets, strict=True)
            ],
            index="image",
        )

    # ---- values

    def image(self, row: int) -> str:
        """The path of one image."""
        return self.images[row]

    def target(self, row: int) -> Targets:
        """The values of one image, [N]."""
        values = np.full(len(self.labels), self.fill, np.int8)
        entries = self._entries(row)
        values[self.columns[entries]] = self.values[entries]
        return values

    def targets(self, rows: ArrayLike | None = None) -> Targets:
        """The values of `rows` (default: all images) as a dense array, [m, N]: m x N bytes."""
        chosen = np.arange(len(self)) if rows is None else self._row_numbers(rows)
        indptr, entries = self._entries_of(chosen)
        dense = np.full((len(chosen), len(self.labels)), self.fill, np.int8)
        dense[np.repeat(np.arange(len(chosen)), np.diff(indptr)), self.columns[entries]] = self.values[entries]
        return dense

    def positives_per_label(self) -> Ints:
        """In how many images each label is present, [N]."""
        return self._count(self.values == PRESENT)

    def unknown_per_label(self) -> Ints:
        """In how many images each label is unknown, [N]."""
        if self.fill == UNKNOWN:
            return len(self) - self._count(self.values != UNKNOWN)
        return self._count(self.values == UNKNOWN)

    def labels_per_image(self) -> Ints:
        """How many labels are present in each image, [M]."""
        return np.bincount(self._row_of_entry()[self.values == PRESENT], minlength=len(self))

    def has_positive(self) -> Mask:
        """Which images have any label present, [M]."""
        return self.labels_per_image() > 0

    def present(self, row: int) -> list[str]:
        """The names of the labels present in one image."""
        entries = self._entries(row)
        return [self.labels[column] for column in np.sort(self.columns[entries][self.values[entries] == PRESENT])]

    def where(self, row: int) -> str:
        """Where an image comes from, for messages: `photos.csv row 812`, or the source alone."""
        return self.source if self.lines is None else f"{self.source} row {self.lines[row]}"

    # ---- splits and rows

    @property
    def all_splits(self) -> tuple[str, ...]:
        return self.splits.names

    def rows(self, split: str) -> Ints:
        """The rows of a split, or of several: `train`, `train+val`, `trainval`."""
        return self.splits.rows(self.wanted_splits(split))

    def select(self, which: str | ArrayLike) -> Self:
        """The images of a split (by name, see `rows`), of row indices (in their order), or of a boolean mask [M]."""
        rows = self.rows(which) if isinstance(which, str) else self._row_numbers(which)
        indptr, entries = self._entries_of(rows)
        return replace(
            self,
            images=self.images.take(rows),
            splits=self.splits.take(rows),
            indptr=indptr,
            columns=self.columns[entries],
            values=self.values[entries],
            lines=None if self.lines is None else self.lines[rows],
        )

    def with_splits(self, splits: Sequence[str]) -> Self:
        """The same images with other split names, one per image."""
        return replace(self, splits=_coded(splits))

    def with_labels(self, order: Sequence[str], missing: Literal["error", "unknown", "absent"] = "error") -> Self:
        """Other columns: reordered, fewer, or (unless `missing` is "error") more, filled with the value named."""
        check_unique(order)
        column_of = {name: column for column, name in enumerate(order)}
        known = set(self.labels)
        added = [name for name in order if name not in known]
        if added and missing == "error":
            raise unknown_name("label", added[0], self.labels, self.source)
        new_column = np.array([column_of.get(name, -1) for name in self.labels], np.int32)
        columns = new_column[self.columns]
        kept = columns >= 0
        lengths = np.bincount(self._row_of_entry()[kept], minlength=len(self))
        table = replace(
            self,
            labels=tuple(order),
            indptr=row_pointers(lengths),
            columns=columns[kept],
            values=self.values[kept],
            single_label=self.single_label and bool(kept.all()),
            label_sets={key: tuple(n for n in names if n in column_of) for key, names in self.label_sets.items()},
        )
        value = UNKNOWN if missing == "unknown" else ABSENT
        return table if not added or value == self.fill else table._set_columns([column_of[n] for n in added], value)

    # ---- making

    @classmethod
    def from_dense(
        cls,
        images: Sequence[str],
        targets: ArrayLike,
        labels: Sequence[str],
        *,
        splits: Sequence[str] | None = None,
        source: str = "",
    ) -> Self:
        """From values [M, N] in {1, 0, -1}.

        >>> LabelTable.from_dense(["a.jpg"], [[1, -1, 0]], ["x", "y", "z"]).unknown_per_label().tolist()
        [0, 1, 0]
        """
        dense = np.asarray(targets, np.int8).reshape(len(images), len(labels))
        rows, columns = np.nonzero(dense)
        entries = np.searchsorted(rows, np.arange(len(images) + 1)), columns, dense[rows, columns]
        return cls._of(images, labels, splits, *entries, source=source)

    @classmethod
    def from_lists(
        cls,
        images: Sequence[str],
        present: Sequence[Sequence[str]],
        labels: Sequence[str] | None = None,
        *,
        absent: Sequence[Sequence[str]] | None = None,
        unknown: Sequence[Sequence[str]] | None = None,
        splits: Sequence[str] | None = None,
        fill: int = ABSENT,
        source: str = "",
        single_label: bool = False,
    ) -> Self:
        """From names per image. Without `labels`, all names that occur, sorted. Of two lists that name the same label
        of an image, present wins over absent and absent over unknown.

        >>> LabelTable.from_lists(["a.jpg"], [["dog"]], unknown=[["cat"]]).target(0).tolist()
        [-1, 1]
        """
        # From the weakest to the strongest: of two values of a column, the last one stays.
        lists = [(unknown, UNKNOWN), (absent, ABSENT), (present, PRESENT)]
        given = [(names, value) for names, value in lists if names is not None]
        if labels is None:
            labels = sorted({name for names, _ in given for row in names for name in row}, key=natural_key)
        column_of = {name: column for column, name in enumerate(labels)}

        def rows() -> Iterator[dict[int, int]]:
            for row in range(len(images)):
                named = {name: value for names, value in given for name in names[row]}
                for name in named:
                    if name not in column_of:
                        raise unknown_name("label", name, labels)
                yield {column_of[name]: value for name, value in named.items()}

        others = {"fill": fill, "source": source, "single_label": single_label}
        return cls.from_rows(images, rows(), labels, splits=splits, **others)

    @classmethod
    def from_rows(
        cls,
        images: Sequence[str],
        rows: Iterable[Mapping[int, int]],
        labels: Sequence[str],
        *,
        splits: Sequence[str] | None = None,
        **others: Any,
    ) -> Self:
        """From a mapping per image, column -> value; `others` are fields of the table.

        >>> LabelTable.from_rows(["a.jpg", "b.jpg"], [{1: 1}, {}], ["cat", "dog"], fill=-1).targets().tolist()
        [[-1, 1], [-1, -1]]
        """
        indptr, columns, values = array("q", [0]), array("i"), array("b")
        for row in rows:
            columns.extend(row)
            values.extend(row.values())
            indptr.append(len(columns))
        return cls._of(images, labels, splits, indptr, columns, values, **others)

    @classmethod
    def _of(
        cls, images: Sequence[str], labels: Sequence[str], splits: Sequence[str] | None, *entries: Any, **others: Any
    ) -> Self:
        coded = _coded([""] * len(images) if splits is None else splits)
        return cls(tuple(labels), PackedStrings(images), coded, *entries, **others)

    # ---- inside

    def _entries(self, row: int) -> slice:
        row = range(len(self))[row]  # negative rows count from the end; others outside raise
        return slice(self.indptr[row], self.indptr[row + 1])

    def _row_numbers(self, which: ArrayLike) -> Ints:
        chosen = np.asarray(which)
        if chosen.dtype == bool and len(chosen) != len(self):
            raise ValueError(f"a mask of {len(chosen)} for {len(self)} images")
        rows = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        if rows.size and not -len(self) <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows from {rows.min()} to {rows.max()} of {len(self)} images")
        return rows % len(self)  # negative indices count from the end

    def _entries_of(self, rows: Ints) -> tuple[Ints, Ints]:
        """Row pointers [m+1] of a table of these rows, and the entries it takes over."""
        lengths = self.indptr[rows + 1] - self.indptr[rows]
        indptr = row_pointers(lengths)
        return indptr, np.repeat(self.indptr[rows] - indptr[:-1], lengths) + np.arange(indptr[-1])

    def _row_of_entry(self) -> Ints:
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))  # [nnz]

    def _count(self, entries: Mask) -> Ints:
        return np.bincount(self.columns[entries], minlength=len(self.labels)).astype(np.int64)

    def _set_columns(self, columns: list[int], value: int) -> Self:
        """Columns that no entry has yet, set to `value` in every row."""
        rows = np.concatenate([self._row_of_entry(), np.repeat(np.arange(len(self)), len(columns))])
        order = np.argsort(rows, kind="stable")
        return replace(
            self,
            indptr=self.indptr + np.arange(len(self) + 1) * len(columns),
            columns=np.concatenate([self.columns, np.tile(columns, len(self))])[order],
            values=np.concatenate([self.values, np.full(len(self) * len(columns), value)])[order],
        )


def _coded(splits: Iterable[str]) -> CodedStrings:
    return CodedStrings(canonical_split(name) for name in splits)


def check_unique(labels: Iterable[str], where: str = "") -> None:
    for name, count in Counter(labels).items():
        if count > 1:
            raise LabelwiseError(f"{where}label {name!r} is listed twice; label names must be unique")
