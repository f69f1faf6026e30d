"""Which images a report measures on: those that are asked for, or what the runs' own recipe kept from training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from labelwise.data.open import open_data
from labelwise.data.run_split import with_splits_of_run
from labelwise.data.table import LabelTable
from labelwise.errors import LabelwiseError
from labelwise.insight.run import Run


@dataclass(frozen=True)
class ReportData:
    whole: LabelTable  # every split: what the data problems are looked for in
    measured: LabelTable
    split: str


def report_data(runs: Sequence[Run], data: str | None, split: str | None) -> ReportData:
    """`data` and `split` as the user gave them. Without data: that of the first run's recipe, which the other runs
    must share. Without a split: test if there is one, else the images that the training validated on."""
    source = data or _own_source(runs)
    # A picture that has gone should not hide what is known about the others, so files are not looked for here.
    whole = with_splits_of_run(open_data(source, check_files="no"), *(run.folder for run in runs))
    if split is not None:
        return ReportData(whole, whole.part(split), split)
    if "test" in whole.split_names:
        return ReportData(whole, whole.select("test"), "test")
    if "val" in whole.split_names:
        return ReportData(whole, whole.select("val"), "val")
    held_out = None if data else _held_out(runs[0])
    if held_out is not None:
        return ReportData(whole, held_out, "validation")
    raise LabelwiseError(f"{source} has neither a test nor a val split; say what to measure on: --split NAME, or all")


def trained_on(run: Run, table: LabelTable) -> int | None:
    """How many of the table's images the run was trained on; None if nobody knows."""
    if run.recipe is None or run.recipe.data.source is None:
        return None
    from labelwise.training.display import Display
    from labelwise.training.tables import open_tables

    try:
        train, _ = open_tables(run.recipe, Display(None), run=run.folder)
    except LabelwiseError:  # its data is somewhere else now
        return None
    known = {os.path.realpath(image) for image in train.images}
    return sum(os.path.realpath(image) in known for image in table.images)


def _own_source(runs: Sequence[Run]) -> str:
    sources = {run.recipe.data.source for run in runs if run.recipe is not None and run.recipe.data.source}
    if not sources:
        raise LabelwiseError("these models do not say what they were trained on: add --data, for example photos.csv")
    if len(sources) > 1:
        listed = ", ".join(sorted(sources))
        raise LabelwiseError(f"the runs were trained on different data ({listed}): say what to compare on with --data")
    return sources.pop()


def _held_out(run: Run) -> LabelTable | None:
    """What the training validated on, also where it took that from the training images itself."""
    if run.recipe is None or run.recipe.data.validation is None:
        return None
    from labelwise.training.display import Display
    from labelwise.training.tables import open_tables

    return open_tables(run.recipe, Display(None), run=run.folder)[1]
