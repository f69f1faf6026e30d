"""Splits in which every label keeps its share: iterative stratification (Sechidis, Tsoumakas and Vlahavas, 2011)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.core.arrays import Doubles
from labelwise.core.errors import LabelwiseError
from labelwise.core.progress import ShowProgress
from labelwise.data.images import duplicate_groups
from labelwise.data.manifests import lost_label_notes
from labelwise.data.readers.manifest import is_usual_split
from labelwise.data.sources import as_table
from labelwise.data.table import PRESENT, LabelTable, canonical_split

if TYPE_CHECKING:
    import pandas

DEFAULT_FRACTIONS = {"train": 0.8, "val": 0.1, "test": 0.1}


def parse_fractions(text: str) -> dict[str, float]:
    """
    >>> parse_fractions("train=0.8,val=0.1,test=0.1")
    {'train': 0.8, 'val': 0.1, 'test': 0.1}
    """
    try:
        fractions = {name.strip(): float(share) for name, share in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise LabelwiseError(f"cannot read the fractions {text!r}; write them as train=0.8,val=0.1,test=0.1") from None
    _check(fractions)
    return fractions


def split(
    data: LabelTable | pandas.DataFrame | str | Path,
    fractions: Mapping[str, float] | str = DEFAULT_FRACTIONS,
    *,
    seed: int = 0,
    force: bool = False,
    duplicates: Sequence[Sequence[int]] | None = None,
    progress: ShowProgress = False,
    **reader: Any,
) -> LabelTable:
    """Give every image a split, so that each split gets its fraction of the images of every label.

    Args:
        data: A table, or what `open_data` takes.
        fractions: Of each split, adding up to 1; also as text: `train=0.8,val=0.1,test=0.1`.
        seed: The same seed gives the same splits.
        force: Replace the splits that images have already; without it they are kept and only the others are divided.
        duplicates: Groups of rows with the same content, which stay together. Default: found by reading the files.
        progress: Whether to show it, or a callback.
        **reader: Options of the data's reader, e.g. `image_column="Id"`.

    >>> table = LabelTable.from_lists([f"{n}.jpg" for n in range(10)], [["cat"], ["dog"]] * 5)
    >>> split(table, {"train": 0.6, "test": 0.4})
    <LabelTable: 10 images, 2 labels; train 6, test 4>
    """
    table = as_table(data, **reader)
    if isinstance(fractions, str):
        fractions = parse_fractions(fractions)
    _check(fractions)
    splits = [""] * len(table) if force else list(table.splits)
    if all(splits):
        sizes = ", ".join(f"{name} {len(table.rows(name))}" for name in table.split_names)
        raise LabelwiseError(
            f"every image of {table.source or 'the table'} has a split already ({sizes}); make new ones",
            options={"force": True},
        )
    groups = duplicate_groups(table.images, progress) if duplicates is None else duplicates
    units = _units(splits, groups)
    for unit, name in zip(units, _stratified(table, units, fractions, seed), strict=True):
        for row in unit:
            splits[row] = name
    return table.with_splits(splits)


def split_notes(table: LabelTable, fractions: Mapping[str, float], file: Path) -> list[str]:
    """What to know about a table with new splits that is written to `file`, one line each."""
    notes = [
        f"too few images: none is in {name!r}" for name in fractions if canonical_split(name) not in table.split_names
    ]
    if not all(map(is_usual_split, table.split_names)):
        notes.append(f"open it with {file}?splits={','.join(table.split_names)}: not all of these are usual names")
    return [*notes, *lost_label_notes(table)]


def _check(fractions: Mapping[str, float]) -> None:
    if any(not name for name in fractions) or any(not 0 < share <= 1 for share in fractions.values()):
        raise LabelwiseError(f"fractions must be named and lie between 0 and 1, not {dict(fractions)}")
    if not math.isclose(sum(fractions.values()), 1, abs_tol=1e-6):
        raise LabelwiseError(f"the fractions add up to {sum(fractions.values()):g}, not to 1: {dict(fractions)}")


def _units(splits: list[str], groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """What is divided: groups of rows without a split. A duplicate of an image that has a split follows it at once."""
    free = {row: [row] for row, name in enumerate(splits) if not name}
    for group in groups:
        fixed = next((splits[row] for row in group if splits[row]), "")
        members = [free.pop(row) for row in group if row in free]
        if fixed:
            for member in members:
                splits[member[0]] = fixed
        elif members:
            free[group[0]] = [row for member in members for row in member]
    return list(free.values())


def _stratified(table: LabelTable, units: list[list[int]], fractions: Mapping[str, float], seed: int) -> list[str]:
    """The split of each unit. Rare labels are dealt out first, each image to the split that lacks its label most."""
    rng = np.random.default_rng(seed)
    names, shares = list(fractions), np.array(list(fractions.values()))
    sizes = np.array([len(unit) for unit in units])
    present = np.split(table.columns[table.values == PRESENT], np.cumsum(table.labels_per_image())[:-1])  # [M] lists
    columns = [np.concatenate([present[row] for row in unit]) for unit in units]  # with repeats: of several images
    members: list[list[int]] = [[] for _ in table.labels]
    for unit in rng.permutation(len(units)).tolist():
        for column in np.unique(columns[unit]).tolist():
            members[column].append(unit)
    remaining = np.bincount(np.concatenate([np.empty(0, np.int64), *columns]), minlength=len(table.labels))  # [N]
    wanted_images = shares * float(sizes.sum())  # [S]
    wanted: Doubles = shares[:, None] * remaining  # [S, N]
    assigned = np.full(len(units), -1)

    def assign(unit: int, lack: Doubles) -> None:
        open_splits = np.flatnonzero(wanted_images > 1e-9)  # unlike the paper: sizes come out as asked, too
        best = open_splits[lack[open_splits] >= lack[open_splits].max() - 1e-9]
        best = best[wanted_images[best] >= wanted_images[best].max() - 1e-9]
        split = int(rng.choice(best)) if len(best) > 1 else int(best[0])
        assigned[unit] = split
        wanted_images[split] -= sizes[unit]
        np.subtract.at(wanted[split], columns[unit], 1)
        np.subtract.at(remaining, columns[unit], 1)

    while remaining.any():
        rarest = int(np.argmin(np.where(remaining > 0, remaining, np.iinfo(np.int64).max)))
        for unit in members[rarest]:
            if assigned[unit] < 0:
                assign(unit, wanted[:, rarest])
    for unit in rng.permutation(np.flatnonzero(assigned < 0)).tolist():  # images without any label
        assign(unit, wanted_images)
    return [names[split] for split in assigned]
