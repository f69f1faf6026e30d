"""All runs of a sweep see the same splits, whatever their seeds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from labelwise.data.manifest_writer import row_names, write_manifest
from labelwise.data.open import open_data
from labelwise.data.split import DEFAULT_FRACTIONS, split_table
from labelwise.data.table import LabelTable
from labelwise.errors import LabelwiseError, unknown_name
from labelwise.sweep.plan import PlannedRun

FILE = "split.csv"


def check_data(runs: Sequence[PlannedRun], out: Path, test_split: str | None) -> Path | None:
    """Open the data before anything runs. If it has no splits, each training would make its own by its seed, and no two
    seeds could be compared: they are made once, and the manifest that holds them is returned."""
    sources = {run.recipe.data.source for run in runs}
    if None in sources:
        raise LabelwiseError("no data: say which with --data, for example --data photos.csv")
    for source in sources:
        table = open_data(str(source))
        if table.split_names == ("",):
            if len(sources) > 1:
                raise LabelwiseError(f"{source} has no splits; make them first with: labelwise data split")
            for name in () if test_split is None else test_split.split("+"):
                if name not in DEFAULT_FRACTIONS:
                    raise unknown_name(f"split of {source}", name, DEFAULT_FRACTIONS)
            if (out / FILE).exists():
                _check_same(table, out)
            else:
                out.mkdir(parents=True, exist_ok=True)
                write_manifest(split_table(table, DEFAULT_FRACTIONS, seed=0), out / FILE)
            return out / FILE
        if test_split is not None:
            table.select(test_split)  # raises, and lists the splits there are
    return None


def _check_same(table: LabelTable, out: Path) -> None:
    """The splits of an earlier sweep in this folder are those of the same photos with the same labels."""
    if _content(open_data(out / FILE, check_files="no")) != _content(table):
        raise LabelwiseError(
            f"{str(out)!r} holds a sweep on other photos or labels than those of {table.source}; choose another --out"
        )


def _content(table: LabelTable) -> dict[str, tuple[set[str], ...]]:
    """The names of the present and of the unknown labels of each photo."""
    names = [tuple(map(set, row_names(table, row))) for row in range(len(table))]
    return dict(zip(map(os.path.realpath, table.images), names, strict=True))
