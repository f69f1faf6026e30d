"""Lists of labels: from a file or a line of text, seen and unseen ones, and a table matched to a model's labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationInfo

from labelwise.core.config import may_read_files
from labelwise.core.errors import LabelwiseError, counted, unknown_name
from labelwise.data.readers.base import read_lines
from labelwise.data.table import LabelTable

FROM_DATA: Literal["data"] = "data"


def label_list(text: str) -> tuple[str, ...]:
    """The names in a text file, one per line, or in `text` itself, separated by commas.

    >>> label_list("bus, dining table")
    ('bus', 'dining table')
    """
    path = Path(text).expanduser()
    if os.path.isfile(path):  # Path.is_file raises for a long list of names
        return tuple(read_lines(path))
    if path.suffix == ".txt" or len(path.parts) > 1:
        raise LabelwiseError(f"there is no list of labels {text!r}; give a file with one label per line")
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _read(value: Any, info: ValidationInfo) -> Any:
    return label_list(value) if isinstance(value, str) and value != FROM_DATA and may_read_files(info) else value


# In a recipe: a list of names, or a text that `label_list` reads. A saved recipe holds the names.
LabelList = Annotated[tuple[str, ...], BeforeValidator(_read)]
UnseenList = Annotated[tuple[str, ...] | Literal["data"], BeforeValidator(_read)]


def unseen_labels(table: LabelTable, unseen: Sequence[str] | Literal["data"]) -> tuple[str, ...]:
    """The labels that training must not see; "data": those that the data itself calls unseen (NUS-WIDE does).

    >>> table = LabelTable.from_lists(["a.jpg"], [["dog"]], ["cat", "dog", "fox"])
    >>> unseen_labels(table, ["fox"])
    ('fox',)
    """
    if unseen == FROM_DATA:
        if not table.label_sets.get("unseen"):
            raise LabelwiseError(
                f"{table.source} does not say which labels are unseen; NUS-WIDE does with ?vocabulary=zero-shot, "
                "for other data, give their names or a file"
            )
        return table.label_sets["unseen"]
    if missing := labels_not_in(table.labels, unseen):
        raise unknown_name("label", missing[0], table.labels, table.source)
    return tuple(unseen)


def seen_labels(table: LabelTable, unseen: Sequence[str]) -> tuple[str, ...]:
    """All other labels of the table, in its order."""
    seen = tuple(labels_not_in(unseen, table.labels))
    if not seen:
        raise LabelwiseError(
            f"{table.source}: all {len(table.labels)} labels are unseen; nothing is left to learn from"
        )
    return seen


_FEW = 5


def match_labels(table: LabelTable, labels: Sequence[str], *, ignore_extra: bool = False) -> LabelTable:
    """The table with the model's `labels` as its columns, in their order.

    A label that the data does not have is unknown in every image (absent where each image has exactly one label). One
    that the model does not have is an error, unless `ignore_extra` leaves it out.

    >>> table = LabelTable.from_lists(["a.jpg"], [["dog"]], ["cat", "dog"])
    >>> match_labels(table, ["dog", "fox", "cat"]).target(0).tolist()
    [1, -1, 0]
    """
    extra = labels_not_in(labels, table.labels)
    source = table.source or "the data"
    if len(extra) == len(table.labels):
        raise LabelwiseError(
            f"{source} and the model have no label in common: {_listed(extra)} against {_listed(labels)}"
        )
    if extra and not ignore_extra:
        raise LabelwiseError(
            f"{source} has {counted(len(extra), 'label', 'labels')} that the model does not know: {_listed(extra)}; "
            "correct the names, or ignore them",
            options={"ignore_extra_labels": True},
        )
    return table.with_labels(labels, missing="absent" if table.single_label else "unknown")


def labels_not_in(these: Sequence[str], names: Sequence[str]) -> list[str]:
    """Those of `names` that are not in `these`, in order."""
    known = set(these)
    return [name for name in names if name not in known]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_FEW])) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")
