"""Which images a run trains on and which it holds out."""

from __future__ import annotations

import hashlib
from pathlib import Path

from labelwise.data.label_list import seen_labels, unseen_labels
from labelwise.data.manifest_writer import write_manifest
from labelwise.data.open import open_data
from labelwise.data.split import DEFAULT_FRACTIONS, split_table
from labelwise.data.table import LabelTable
from labelwise.errors import LabelwiseError
from labelwise.training.display import Display
from labelwise.training.recipe import DataRecipe, Recipe
from labelwise.training.start import earlier_splits


def open_tables(
    recipe: Recipe, display: Display, *, split_file: Path | None = None, run: Path | None = None
) -> tuple[LabelTable, LabelTable | None]:
    """The images to train on and to validate. Splits are made where the data has none, always the same for the same
    seed and images, and written to `split_file`; those that a `run` has written already are kept."""
    data = recipe.data
    if data.source is None:
        raise LabelwiseError("no data: say which with --data, for example --data photos.csv")
    table = open_data(data.source, labels=data.labels)
    if table.split_names == ("",):
        earlier = earlier_splits(table, run, recipe.model.start)
        table = earlier or split_table(table, DEFAULT_FRACTIONS, seed=recipe.seed)
        if split_file is not None:
            write_manifest(table, split_file)
            said = "made train, val and test" if earlier is None else f"those of {recipe.model.start}"
            display.say(f"{data.source} has no splits: {said}, written to {split_file}")
    train_table = seen_part(table.select(data.train), data, display)
    if data.validation is None:
        return train_table, None
    if data.validation in table.split_names or "+" in data.validation:
        return train_table, seen_part(table.select(data.validation), data, display)
    if data.validation != "val":
        table.select(data.validation)  # raises, and lists the splits there are
    if len(train_table) < 2:
        raise LabelwiseError("one image cannot be learned from and held out; add more, or --set data.validation=null")
    unsplit = train_table.with_splits([""] * len(train_table))
    fractions = {"train": 1 - data.validation_share, "val": data.validation_share}
    parts = split_table(unsplit, fractions, seed=recipe.seed)
    display.say(f"no validation split: {data.validation_share:.0%} of the training images are held out")
    return parts.select("train"), parts.select("val")


def seen_part(table: LabelTable, data: DataRecipe, display: Display) -> LabelTable:
    """What training may look at: of a zero-shot recipe the seen labels, and not every image."""
    if data.unseen is None:
        return table
    unseen = unseen_labels(table, data.unseen)
    seen = table.with_labels(seen_labels(table, unseen))
    usable = ~table.with_labels(unseen).has_positive()  # [M]
    if data.unseen_images != "drop":
        usable |= seen.has_positive() if data.unseen_images == "keep-labelled" else True
    if not usable.any():
        raise LabelwiseError(f"{table.source}: every image has an unseen label; add --set data.unseen_images=keep")
    if not usable.all():
        display.say(f"{(~usable).sum()} of {len(table)} images are left out: they have an unseen label")
    return seen.select(usable)


def fingerprint(*tables: LabelTable | None) -> str:
    """What tells whether the images or their labels have changed since a run was started."""
    digest = hashlib.sha256()
    for table in tables:
        if table is not None:
            digest.update("\n".join([*table.labels, *table.images]).encode("utf-8", "surrogateescape"))
            for part in (table.indptr, table.columns, table.values):
                digest.update(part.tobytes())
    return digest.hexdigest()
