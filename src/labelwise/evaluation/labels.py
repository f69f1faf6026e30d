"""A dataset's labels against a model's: matched by name, never by position."""

from __future__ import annotations

from collections.abc import Sequence

from labelwise.data.table import LabelTable
from labelwise.errors import LabelwiseError

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
            f"{source} has {len(extra)} label{'s' * (len(extra) > 1)} that the model does not know: {_listed(extra)}. "
            "Correct the names, or add --ignore-extra-labels."
        )
    return table.with_labels(labels, missing="absent" if table.single_label else "unknown")


def labels_not_in(these: Sequence[str], names: Sequence[str]) -> list[str]:
    """Those of `names` that are not in `these`, in order."""
    known = set(these)
    return [name for name in names if name not in known]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_FEW])) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")
