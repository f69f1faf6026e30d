"""Hide labels of a dataset, to see what a training does with those that are left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.core.arrays import Targets, row_pointers
from labelwise.core.errors import LabelwiseError
from labelwise.data.sources import as_table
from labelwise.data.table import PRESENT, UNKNOWN, LabelTable

if TYPE_CHECKING:
    import pandas

ONE_POSITIVE = "one-positive"


def hide(
    data: LabelTable | pandas.DataFrame | str | Path,
    keep: float | str,
    *,
    seed: int = 0,
    split: str | None = None,
    **reader: Any,
) -> LabelTable:
    """Make most labels of a dataset unknown, as if nobody had annotated them.

    Args:
        data: A table, or what `open_data` takes.
        keep: What stays known: `one-positive`, one of the labels that are present in each image (Cole et al., CVPR
            2021), or a share such as 0.1, of the labels present and absent alike.
        seed: The same seed hides the same labels.
        split: The images to hide labels of, e.g. `train+val`, or `all`. Default: all splits but `test`.
        **reader: Options of the data's reader, e.g. `image_column="Id"`.

    >>> table = LabelTable.from_lists(["a.jpg", "b.jpg"], [["cat", "dog"], ["sofa"]], splits=["train", "test"])
    >>> hide(table, "one-positive").targets().tolist()
    [[1, -1, -1], [0, 0, 1]]
    """
    share = _share(keep)
    table = as_table(data, **reader)
    if split is not None:
        rows = np.arange(len(table)) if split == "all" else table.rows(split)
    else:
        rows = np.flatnonzero([name != "test" for name in table.splits])
    targets = table.targets()
    random = np.random.default_rng(seed).random((len(rows), len(table.labels)))
    if share is None:
        drawn = np.where(targets[rows] == PRESENT, random, -1.0)
        kept = (drawn == drawn.max(axis=1, keepdims=True)) & (drawn >= 0)
    else:
        kept = random < share
    targets[rows] = np.where(kept, targets[rows], UNKNOWN)
    return _with_targets(table, targets)


def _share(keep: float | str) -> float | None:
    if keep == ONE_POSITIVE:
        return None
    try:
        share = float(keep)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise LabelwiseError(
            f"cannot keep {keep!r}: write {ONE_POSITIVE}, or a share such as 0.1", options={"keep": 0.1}
        )
    return share


def _with_targets(table: LabelTable, targets: Targets) -> LabelTable:
    """The same images with other values [M, N]."""
    rows, columns = np.nonzero(targets != table.fill)
    return replace(
        table,
        indptr=row_pointers(np.bincount(rows, minlength=len(table))),
        columns=columns.astype(np.int32),
        values=targets[rows, columns],
        single_label=False,
    )
