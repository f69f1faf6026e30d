"""Lists of labels as people give them: in a file, in one line, or as the data itself has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from labelwise.data.table import LabelTable
from labelwise.errors import LabelwiseError, unknown_name

FROM_DATA: Literal["data"] = "data"


def label_list(text: str) -> tuple[str, ...]:
    """The names in a text file, one in each line, or in `text` itself, with commas between them.

    >>> label_list("bus, dining table")
    ('bus', 'dining table')
    """
    path = Path(text).expanduser()
    if not path.is_file():
        if path.suffix == ".txt" or len(path.parts) > 1:
            raise LabelwiseError(f"there is no list of labels {text!r}; give a file with one label in each line")
        return tuple(name.strip() for name in text.split(",") if name.strip())
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LabelwiseError(f"cannot read the list of labels {text!r}: {error}") from None
    return tuple(line.strip() for line in lines if line.strip())


def _read(value: Any) -> Any:
    return label_list(value) if isinstance(value, str) and value != FROM_DATA else value


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
                "for other data give their names or a file"
            )
        return table.label_sets["unseen"]
    known = set(table.labels)
    for name in unseen:
        if name not in known:
            raise unknown_name(f"label of {table.source}", name, table.labels)
    return tuple(unseen)


def seen_labels(table: LabelTable, unseen: Sequence[str]) -> tuple[str, ...]:
    """All other labels of the table, in its order."""
    hidden = set(unseen)
    seen = tuple(name for name in table.labels if name not in hidden)
    if not seen:
        raise LabelwiseError(
            f"{table.source}: all {len(table.labels)} labels are unseen; nothing is left to learn from"
        )
    return seen
