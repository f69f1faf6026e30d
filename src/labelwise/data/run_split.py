"""The splits that a training made where the data has none."""

from __future__ import annotations

import os
from pathlib import Path

from labelwise.data.open import open_data
from labelwise.data.table import LabelTable


def with_splits_of_run(table: LabelTable, *folders: Path | None) -> LabelTable:
    """Data without splits gets those that the training made of it: `split.csv` in the first run folder that has it."""
    made = next((folder / "split.csv" for folder in folders if folder and (folder / "split.csv").is_file()), None)
    if made is None or table.split_names != ("",):
        return table
    written = open_data(made, check_files="no")
    split_of = {os.path.realpath(image): split for image, split in zip(written.images, written.splits, strict=True)}
    return table.with_splits([split_of.get(os.path.realpath(image), "") for image in table.images])
