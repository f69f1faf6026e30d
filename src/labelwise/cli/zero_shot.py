"""The zero-shot part of `labelwise evaluate`: which labels are unseen, and the table of what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from labelwise.data.label_list import FROM_DATA, label_list, unseen_labels
from labelwise.data.table import LabelTable
from labelwise.training.recipe import load_recipe

_LABELS_SHOWN = 30


def unseen_of(given: str | None, model: str, table: LabelTable) -> tuple[str, ...]:
    """The unseen labels that the user names, else those of the run's recipe; none of them, for most runs."""
    if given is not None:
        if given == "none":
            return ()
        return unseen_labels(table, FROM_DATA if given == FROM_DATA else label_list(given))
    for folder in (Path(model), Path(model).parent):
        if (folder / "recipe.yaml").is_file():
            wanted = load_recipe(folder / "recipe.yaml", {}).data.unseen or ()
            # Other data than the run's may have none of them.
            return unseen_labels(table, wanted if wanted == FROM_DATA else [n for n in wanted if n in table.labels])
    return ()


def show_zero_shot(result: dict[str, Any]) -> None:
    console, data = Console(highlight=False), result["data"]
    zsl, gzsl = result["zsl"], result["gzsl"]
    console.print(
        f"{result['model']['source']} on {data['source']} ({data['split']}): {result['images']:,} images, "
        f"{gzsl['labels'] - zsl['labels']:,} labels seen, {zsl['labels']:,} unseen",
        markup=False,
        soft_wrap=True,
    )
    console.print(_label_table(result["per_label"]))
    console.print(_headline_table(result))
    for count, text in (
        (gzsl["labels_without_positives"], "labels without a known positive, left out of mAP"),
        (len(result["labels_ignored"]), "labels of the data that are neither seen nor unseen, ignored"),
        (result["unknown_entries"], "unknown values, counted nowhere"),
        (len(result["bad_images"]), "images that cannot be decoded, skipped"),
    ):
        if count:
            console.print(f"{text}: {count:,}")


def _headline_table(result: dict[str, Any]) -> Table:
    samples = result["samples"]
    title = f"percent, with {result['level']:.0f} % intervals of {samples:,} samples" if samples else "percent"
    table = Table("", title=title, box=None, title_justify="left")
    for column in ("unseen (ZSL)", "chance", "all (GZSL)", "chance"):
        table.add_column(column, justify="right", no_wrap=True)
    names = {"mAP": "mAP"} | {
        f"{short}_top{k}": f"{name} at {k}"
        for k in (1, 3, 5)
        for short, name in (("OP", "precision"), ("OR", "recall"), ("OF1", "F1"))
    }
    for key, name in names.items():
        cells: list[str] = []
        for part in (result["zsl"], result["gzsl"]):
            interval = part["confidence"].get(key)
            bounds = "" if interval is None or None in interval else f" ({interval[0]:.1f} to {interval[1]:.1f})"
            cells += [_number(part[key]) + bounds, _number(part["chance"][key])]
        table.add_row(name, *cells)
        if key == "mAP":
            relative = result["zsl_relative"]
            table.add_row("mAP, relative", _number(relative["mAP"]), _number(relative["chance"]["mAP"]), "", "")
    return table


def _label_table(rows: list[dict[str, Any]]) -> Table:
    """The unseen labels first: they are what this is about."""
    table = Table("label", "", box=None)
    for column in ("AP", "chance", "positives"):
        table.add_column(column, justify="right")
    ordered = sorted(rows, key=lambda row: not row["unseen"])
    if len(ordered) > _LABELS_SHOWN:
        table.caption = f"{_LABELS_SHOWN} of {len(ordered):,} labels; --json has all"
    for row in ordered[:_LABELS_SHOWN]:
        kind = "unseen" if row["unseen"] else "seen"
        table.add_row(escape(row["label"]), kind, _number(row["AP"]), _number(row["chance"]), f"{row['positives']:,}")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
