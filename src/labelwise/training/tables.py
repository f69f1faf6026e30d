"""The images and labels of a recipe: what is trained on, what is held out. No PyTorch: mistakes are told at once."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labelwise.core.errors import LabelwiseError
from labelwise.core.files import sha256
from labelwise.data.labels import seen_labels, unseen_labels
from labelwise.data.manifests import write_manifest
from labelwise.data.sources import open_images
from labelwise.data.splitting import DEFAULT_FRACTIONS, split
from labelwise.data.stream_table import AnyTable, StreamTable
from labelwise.data.table import SPLITS, LabelTable
from labelwise.runtime.folder import find_folder
from labelwise.training.recipe import DataRecipe, Recipe
from labelwise.training.run import with_splits_of_run

if TYPE_CHECKING:
    from labelwise.training.display import Display


def open_source(recipe: Recipe) -> AnyTable:
    """All images of the recipe's data; an error for a path, column, label or split that is not there."""
    data = recipe.data
    if data.source is None:
        raise LabelwiseError("no data to train on; name it", options={"data": "photos.csv"})
    table = open_images(data.source, labels=data.labels)
    if table.split_names != ("",):
        table.select(data.train)
        if data.validation not in (None, "val"):
            table.select(data.validation)
    return table


def open_tables(
    recipe: Recipe,
    display: Display,
    *,
    source: AnyTable | None = None,
    split_file: Path | None = None,
    run: Path | None = None,
) -> tuple[AnyTable, AnyTable | None]:
    """The training and the validation images. `source`: what `open_source` has given for the recipe.

    Data without splits is split, always in the same way for the same seed and images, and written to `split_file`;
    splits that a `run` has already written are used again.
    """
    data, table = recipe.data, open_source(recipe) if source is None else source
    if isinstance(table, StreamTable):
        return _stream_tables(table, recipe, display)
    if table.split_names == ("",):
        earlier = earlier_splits(table, run, recipe.model.start)
        table = earlier or split(table, DEFAULT_FRACTIONS, seed=recipe.seed)
        if split_file is not None:
            write_manifest(table, split_file)
            origin = "train, val and test were made" if earlier is None else f"using those of {recipe.model.start}"
            display.say(f"{data.source} has no splits: {origin}, see {split_file}")
    table = sampled(table, recipe)
    train_table = usable_part(table.select(data.train), data, display)
    if data.validation is None:
        return train_table, None
    if own_validation(data, table.split_names):
        return train_table, usable_part(table.select(data.validation), data, display)
    if data.validation != "val":
        table.select(data.validation)  # raises, and lists the splits there are
    if len(train_table) < 2:
        raise LabelwiseError(
            "one image is too few to train and validate; add more, or train without validation",
            options={"data.validation": "null"},
        )
    unsplit = train_table.with_splits([""] * len(train_table))
    fractions = {"train": 1 - data.validation_share, "val": data.validation_share}
    parts = split(unsplit, fractions, seed=recipe.seed)
    display.say(f"no validation split: {data.validation_share:.0%} of the training images are held out")
    return parts.select("train"), parts.select("val")


def own_validation(data: DataRecipe, names: Collection[str]) -> bool:
    """Whether the validation images are splits of their own among those with these `names`, not held out of others."""
    return data.validation is not None and (data.validation in names or "+" in data.validation)


def learned_splits(data: DataRecipe, table: LabelTable) -> list[str]:
    """The splits of the table that a training sees, in the table's order: `refit` names all of them in `train`."""
    names = {*table.wanted_splits(data.train)}
    if data.validation is not None and own_validation(data, table.split_names):
        names |= {*table.wanted_splits(data.validation)}
    return [name for name in table.split_names if name in names]


def sampled(table: LabelTable, recipe: Recipe) -> LabelTable:
    """`table` with at most `max_images` images to train and validate on: the same ones for the same seed, so that a
    resumed run and `refit` find them again. Each split keeps its share and at least one image; other splits stay
    whole."""
    most = recipe.data.max_images
    if most is None:
        return table
    parts = [table.splits.rows([name]) for name in learned_splits(recipe.data, table)]
    ends = np.cumsum([0, *map(len, parts)])
    if ends[-1] <= most:
        return table
    counts = np.maximum(1, np.diff(np.rint(ends * most / ends[-1]).astype(int)))
    largest = counts.argmax()
    counts[largest] = max(1, counts[largest] - (counts.sum() - most))  # it gives what small splits got beyond theirs
    kept = np.ones(len(table), bool)
    for rows, count in zip(parts, counts, strict=True):
        if count < len(rows):
            part = table.select(rows)
            shares = {"kept": count / len(rows), "left": 1 - count / len(rows)}
            drawn = split(part.with_splits([""] * len(part)), shares, seed=recipe.seed, duplicates=())
            kept[rows[drawn.rows("left")]] = False
    return table.select(kept)


def _stream_tables(table: StreamTable, recipe: Recipe, display: Display) -> tuple[StreamTable, StreamTable | None]:
    """The same of shards, whose labels nobody has read yet: what is held out is drawn at random."""
    data = recipe.data
    if data.max_images is not None:
        raise LabelwiseError(
            f"{table.source}: a sample of its images needs their labels, which are known only when they are read; use "
            "all of them",
            options={"data.max_images": None},
        )
    if data.unseen is not None:
        if data.unseen_images != "keep":
            raise LabelwiseError(
                f"{table.source}: which images have an unseen label is known only when they are read; keep them",
                options={"data.unseen_images": "keep"},
            )
        table = table.with_labels(seen_labels(table, unseen_labels(table, data.unseen)))
    if data.empty_images == "drop":
        raise LabelwiseError(
            f"{table.source}: which images have no label is known only when they are read; keep them",
            options={"data.empty_images": "keep"},
        )
    train = table if table.split_names == ("",) else table.select(data.train)
    if data.validation is None:
        return train, None
    if data.validation != "val" or "val" in table.split_names:
        return train, table.select(data.validation)
    display.say(f"no validation split: {data.validation_share:.0%} of the training images are held out")
    return train.held_out(data.validation_share, recipe.seed)


def splits_to_refit(data: DataRecipe, source: AnyTable) -> str | None:
    """The splits with all images of training and validation; None if no test images would be left to measure on."""
    names = source.split_names
    if names == ("",) and isinstance(source, LabelTable):
        names = SPLITS  # as `open_tables` makes them
    if data.validation is None or "test" not in names:
        return None
    # Validation images that are no split of their own were drawn from the training images.
    splits = f"{data.train}+{data.validation}" if own_validation(data, names) else data.train
    return None if "test" in splits.split("+") else splits


def usable_part(table: LabelTable, data: DataRecipe, display: Display) -> LabelTable:
    """What training may see: in a zero-shot recipe, only the seen labels and not every image."""
    if data.unseen is not None:
        unseen = unseen_labels(table, data.unseen)
        seen = table.with_labels(seen_labels(table, unseen))
        usable = ~table.with_labels(unseen).has_positive()  # [M]
        if data.unseen_images != "drop":
            usable |= seen.has_positive() if data.unseen_images == "keep-labelled" else True
        table = _only(seen, usable, "have an unseen label", {"data.unseen_images": "keep"}, display)
    if data.empty_images == "drop":
        table = _only(table, table.has_positive(), "have no label", {"data.empty_images": "keep"}, display)
    return table


def _only(table: LabelTable, usable: NDArray[np.bool_], why: str, keep: dict[str, Any], display: Display) -> LabelTable:
    if not usable.any():
        raise LabelwiseError(f"{table.source}: all images {why}; keep these images", options=keep)
    if not usable.all():
        display.say(f"{(~usable).sum()} of {len(table)} images {why} and are left out")
    return table.select(usable)


def earlier_splits(table: LabelTable, run: Path | None, start: str | None) -> LabelTable | None:
    """`table` with the splits of `run`, else of the run that it starts from; None if there are none."""
    own = with_splits_of_run(table, run)
    if own.split_names != ("",):
        return own
    if start is None:
        return None
    known = with_splits_of_run(table, start)
    if known.split_names == ("",):
        return None
    # Images that the earlier run did not have are trained on; those it was trained on never become test images.
    return known.with_splits([split or "train" for split in known.splits])


def data_fingerprint(*tables: AnyTable | None) -> str:
    """The same as long as the images and their labels are: a run resumes only on the same data."""
    parts: list[str | bytes] = []
    for table in tables:
        if isinstance(table, StreamTable):
            parts.append(table.fingerprint)
        elif table is not None:
            parts.append("\n".join([*table.labels, *table.images]))
            parts += [values.tobytes() for values in (table.indptr, table.columns, table.values)]
    return sha256(*parts).hexdigest()


def check_start(start: str, folder: Path) -> None:
    """Raise an error if the model to continue from lies in the run that would be replaced."""
    if find_folder(start).resolve().is_relative_to(folder.resolve()):
        raise LabelwiseError(f"{start!r} is the run that would be replaced; choose another folder for the new one")
