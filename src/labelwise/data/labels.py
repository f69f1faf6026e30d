"""Lists of labels: from a file or a line of text, seen and unseen ones, and a table matched to a model's labels."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from unicodedata import normalize

import numpy as np
from pydantic import BeforeValidator, ValidationInfo

from labelwise.core.arrays import row_pointers
from labelwise.core.config import may_read_files
from labelwise.core.errors import LabelwiseError, counted, shortened, unknown_name
from labelwise.data.readers.base import read_lines
from labelwise.data.table import LabelTable, natural_key

if TYPE_CHECKING:
    from labelwise.data.stream_table import AnyTable

FROM_DATA: Literal["data"] = "data"
_Table = TypeVar("_Table", bound="AnyTable")


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


def unseen_labels(table: AnyTable, unseen: Sequence[str] | Literal["data"]) -> tuple[str, ...]:
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


def seen_labels(table: AnyTable, unseen: Sequence[str]) -> tuple[str, ...]:
    """All other labels of the table, in its order."""
    seen = tuple(labels_not_in(unseen, table.labels))
    if not seen:
        raise LabelwiseError(
            f"{table.source}: all {len(table.labels)} labels are unseen; nothing is left to learn from"
        )
    return seen


_COCO_NAMES = {"aeroplane": "airplane", "motorbike": "motorcycle", "sofa": "couch", "tvmonitor": "tv"}  # of VOC labels


def match_labels(table: _Table, labels: Sequence[str], *, ignore_extra: bool = False) -> _Table:
    """The table with the model's `labels` as its columns, in their order.

    A label that the data does not have is unknown in every image (absent where each image has exactly one label). One
    that the model does not have is an error, unless `ignore_extra` leaves it out. Names are the same if they differ
    only in capitals, blanks, hyphens and underscores, or are PASCAL VOC's and COCO's names of one thing.

    >>> table = LabelTable.from_lists(["a.jpg"], [["sofa"]], ["cat", "diningtable", "sofa"])
    >>> match_labels(table, ["couch", "fox", "dining table", "cat"]).target(0).tolist()
    [1, -1, 0, 0]
    """
    table = respelt(table, labels)
    extra = labels_not_in(labels, table.labels)
    source = table.source or "the data"
    if len(extra) == len(table.labels):
        ours, theirs = (shortened(list(map(repr, names))) for names in (extra, labels))
        raise LabelwiseError(f"{source} and the model have no label in common: {ours} against {theirs}")
    if extra and not ignore_extra:
        raise LabelwiseError(
            f"{source} has {counted(len(extra), 'label')} that the model does not know: "
            f"{shortened(list(map(repr, extra)))}; correct the names, or ignore them",
            options={"ignore_extra_labels": True},
        )
    matched = table.with_labels(labels, missing="absent" if table.single_label else "unknown")
    return matched  # type: ignore[return-value]  # of the same kind


def variant_key(name: str) -> str:
    """The same for names that differ only in case, spacing, hyphens or the coding of accents.

    >>> variant_key("Traffic_Light") == variant_key("traffic  light"), variant_key("cat") == variant_key("cats")
    (True, False)
    """
    return re.sub(r"[\s_-]+", "", normalize("NFKC", name).casefold())


def _coco_key(name: str) -> str:
    key = variant_key(name)
    return _COCO_NAMES.get(key, key)


def unknown_label(name: str, labels: Sequence[str]) -> LabelwiseError:
    """An error for a label that is not there, which proposes another spelling or COCO's and VOC's other name for it.

    >>> str(unknown_label("sofa", ["chair", "couch"]))
    "unknown label 'sofa'; did you mean 'couch'? (chair, couch)"
    """
    same = (label for label in labels if _coco_key(label) == _coco_key(name))
    return unknown_name("label", name, labels, meant=next(same, None))


def label_variants(table: LabelTable) -> list[list[str]]:
    """Groups of labels that are probably one, the most frequent name first."""
    groups: dict[str, list[int]] = {}
    for column, name in enumerate(table.labels):
        groups.setdefault(variant_key(name), []).append(column)
    several = [columns for columns in groups.values() if len(columns) > 1]
    if not several:
        return []
    images = table.positives_per_label()
    return [[table.labels[column] for column in sorted(columns, key=lambda c: -images[c])] for columns in several]


def variant_note(table: LabelTable) -> str:
    groups = label_variants(table)
    if not groups:
        return ""
    shown = shortened([" and ".join(map(repr, group)) for group in groups], 3)
    return f"{table.source}: different labels with almost the same name: {shown}; join them with merge_variants=yes"


def merged_variants(table: LabelTable, preferred: Sequence[str] = ()) -> LabelTable:
    """The table with one label for each group of variants, under the preferred or else the most frequent name.

    >>> table = LabelTable.from_lists(["a.jpg", "b.jpg", "c.jpg"], [["cat"], ["Cat", "dog"], ["cat"]])
    >>> merged = merged_variants(table)
    >>> merged.labels, merged.targets().tolist()
    (('cat', 'dog'), [[1, 0], [1, 1], [1, 0]])
    """
    wanted = {variant_key(name): name for name in preferred}
    name_of = {name: group[0] for group in label_variants(table) for name in group}
    names = [wanted.get(variant_key(name), name_of.get(name, name)) for name in table.labels]
    renamed = dict(zip(table.labels, names, strict=True))
    merged = dict.fromkeys(names)
    if sorted(table.labels, key=natural_key) == list(table.labels):  # not the columns of a table, in their order
        merged = dict.fromkeys(sorted(merged, key=natural_key))
    column_of = {name: column for column, name in enumerate(merged)}
    new_column = np.array([column_of[name] for name in names], np.int64)
    rows = np.repeat(np.arange(len(table)), np.diff(table.indptr))
    order = np.lexsort(
        (table.values, new_column[table.columns], rows)
    )  # of several values of a label, the largest last
    place = np.stack([rows, new_column[table.columns]])[:, order]  # [2, nnz]
    last = np.append((np.diff(place) != 0).any(axis=0), True)[: len(order)]
    return replace(
        table,
        labels=tuple(column_of),
        indptr=row_pointers(np.bincount(place[0, last], minlength=len(table))),
        columns=place[1, last],
        values=table.values[order][last],
        label_sets={
            key: tuple(dict.fromkeys(renamed.get(name, name) for name in known))
            for key, known in table.label_sets.items()
        },
    )


def respelt(table: _Table, labels: Sequence[str]) -> _Table:
    """The table with names spelt as in `labels`, where that leaves no doubt which one is meant."""

    def by_key(names: Sequence[str], key_of: Callable[[str], str]) -> dict[str, str]:
        keys = [key_of(name) for name in names]
        counts = Counter(keys)
        return {key: name for key, name in zip(keys, names, strict=True) if counts[key] == 1}

    spelt: dict[str, str] = {}
    for key_of in (variant_key, _coco_key):  # another name for it only if its own is not there
        known = by_key(labels_not_in(list(spelt.values()), labels), key_of)
        found = by_key(labels_not_in(list(spelt), table.labels), key_of)
        spelt |= {name: known[key] for key, name in found.items() if key in known}

    def renamed(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(spelt.get(name, name) for name in names)

    sets = {key: renamed(names) for key, names in table.label_sets.items()}
    return replace(table, labels=renamed(table.labels), label_sets=sets)


def labels_not_in(these: Sequence[str], names: Sequence[str]) -> list[str]:
    """Those of `names` that are not in `these`, in order."""
    known = set(these)
    return [name for name in names if name not in known]
