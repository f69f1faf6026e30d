"""What is in a dataset and what is wrong with it: counts, co-occurrence, duplicates, broken images."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.core.errors import LabelwiseError, counted, shortened
from labelwise.core.progress import ShowProgress, track
from labelwise.core.tables import html_table, to_frame
from labelwise.data.decode import decode_many
from labelwise.data.images import BadImage, duplicate_groups
from labelwise.data.labels import label_variants, variant_key
from labelwise.data.readers.finding import folder_of_missing
from labelwise.data.sources import as_table, is_frame, parse_source, read_data
from labelwise.data.table import PRESENT, LabelTable

if TYPE_CHECKING:
    import pandas

FEW = 10  # positives: a label with fewer is hardly learnable, and its AP is mostly luck
_PAIRED_LABELS = 500  # co-occurrence is counted between the most frequent labels only: memory grows with the square
_ALWAYS = 3  # images: two may be chance
_COMPARED_NAMES = 2_000  # the time grows with the square
_TIMES, _ALIKE = 10, 0.85  # a typing error is rarer by this factor, and shares this part of its letters
_BLOCK = 65_536  # rows made dense at once


@dataclass(frozen=True)
class LabelCount:
    label: str
    present: int
    unknown: int
    per_split: dict[str, int]  # images with the label in each split


@dataclass(frozen=True)
class Pair:
    """Two labels and how often they come together; `lift` is that frequency over what chance would give."""

    a: str
    b: str
    together: int
    b_given_a: float
    a_given_b: float
    lift: float


@dataclass(frozen=True)
class DuplicateGroup:
    images: list[str]
    splits: list[str]  # of each image
    conflict: bool  # the same image with different labels


@dataclass(frozen=True)
class Inspection:
    """The statistics and problems of a dataset, as `inspect` finds them."""

    source: str
    images: int
    splits: dict[str, int]
    labels: list[LabelCount]
    images_by_label_count: dict[int, int]  # labels in an image -> images
    mean_labels_per_image: float
    imbalance: float  # positives of the most frequent label over those of the rarest that has any
    unknown_share: float  # of all images x labels
    together: list[Pair]  # most often in the same image
    apart: list[Pair]  # least often, measured by what chance would give
    duplicates: list[DuplicateGroup]
    broken: list[BadImage]  # missing or not decodable
    decoded: bool  # whether images were decoded; if not, `broken` holds only those that are missing
    missing_fix: str  # where images that are missing lie, and the option that finds them; "" if they do not
    similar: list[list[str]]  # labels that are probably one: variants of a name, and typing errors
    inseparable: list[list[str]]  # pairs of labels that always occur together
    notes: list[str]  # what the reader assumed

    @property
    def problems(self) -> list[str]:
        """What to fix, worst first, one line each."""
        return list(_problems(self))

    def __repr__(self) -> str:
        splits = ", ".join(f"{name or 'no split'} {count}" for name, count in self.splits.items())
        found = counted(len(self.problems), "problem") if self.problems else "no problems"
        size = f"{counted(self.images, 'image')}, {counted(len(self.labels), 'label')}"
        return f"<Inspection {self.source!r}: {size}; {splits}; {found}>"

    def _repr_html_(self) -> str:
        problems = "".join(f"<li>{escape(problem)}</li>" for problem in self.problems)
        header, rows = self._label_rows()
        return f"<p>{escape(repr(self))}</p><ul>{problems}</ul>{html_table(header, rows)}"

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self) | {"problems": self.problems, "broken": [bad._asdict() for bad in self.broken]}

    def to_pandas(self) -> pandas.DataFrame:
        """One row per label: images with it, in all and in each split, and images where it is unknown."""
        header, rows = self._label_rows()
        return to_frame([dict(zip(header, row, strict=True)) for row in rows], index="label")

    def _label_rows(self) -> tuple[list[str], list[list[object]]]:
        splits = [name for name in self.splits if name]
        rows: list[list[object]] = [
            [count.label, count.present, *(count.per_split[split] for split in splits), count.unknown]
            for count in sorted(self.labels, key=lambda count: -count.present)
        ]
        return ["label", "images", *splits, "unknown"], rows


def inspect(
    data: LabelTable | pandas.DataFrame | str | Path,
    *,
    decode: bool = True,
    pairs: int = 10,
    progress: ShowProgress = False,
    **reader: Any,
) -> Inspection:
    """Say what is in a dataset and what to fix.

    Args:
        data: A table, or what `open_data` takes. Missing images are then listed as broken.
        decode: Decode every image, to find the broken ones; otherwise only the missing ones are.
        pairs: How many pairs of labels to list that occur together, or avoid each other.
        progress: Whether to show it, or a callback.
        **reader: Options of the data's reader, e.g. `image_column="Id"`.

    >>> inspect(LabelTable.from_lists(["a.jpg", "b.jpg"], [["cat"], []], source="photos"), decode=False).problems[1]
    '1 label has fewer than 10 images (cat). Collect more, merge or drop.'
    """
    if not isinstance(data, LabelTable) and (is_frame(data) or "check_files" not in parse_source(data).options):
        reader = {"check_files": "no", **reader}
    table = as_table(data, **reader)
    positives, unknown = table.positives_per_label(), table.unknown_per_label()
    per_split = {split: table.select(split).positives_per_label() for split in table.split_names}
    counts = table.labels_per_image()  # [M]
    together, apart, inseparable = _pairs(table, positives, pairs)
    broken = _bad_images(table, progress) if decode else _missing_images(table)
    some = positives[positives > 0]
    return Inspection(
        source=table.source,
        images=len(table),
        splits={split: len(table.rows(split)) for split in table.split_names},
        labels=[
            LabelCount(
                name, int(positives[c]), int(unknown[c]), {split: int(n[c]) for split, n in per_split.items() if split}
            )
            for c, name in enumerate(table.labels)
        ],
        images_by_label_count={int(k): int(n) for k, n in enumerate(np.bincount(counts)) if n},
        mean_labels_per_image=float(counts.mean()),
        imbalance=float(some.max() / some.min()) if len(some) else 0.0,
        unknown_share=float(unknown.sum() / max(1, len(table) * len(table.labels))),
        together=together,
        apart=apart,
        duplicates=[
            DuplicateGroup(
                [table.images[row] for row in rows],
                [table.splits[row] for row in rows],
                conflict=bool((np.ptp(table.targets(rows), axis=0) > 0).any()),
            )
            for rows in duplicate_groups(table.images, progress)
        ],
        broken=broken,
        decoded=decode,
        missing_fix=_missing_fix(data, reader, table, [bad.path for bad in broken if bad.is_missing]),
        similar=label_variants(table) + _typing_errors(dict(zip(table.labels, positives.tolist(), strict=True))),
        inseparable=inseparable,
        notes=list(table.notes),
    )


def _missing_images(table: LabelTable) -> list[BadImage]:
    there = (os.path.exists(image) for image in table.images)
    return [BadImage.missing(row, table.images[row]) for row, found in enumerate(there) if not found]


def _missing_fix(data: Any, reader: dict[str, Any], table: LabelTable, missing: list[str]) -> str:
    """Where the images lie that are not where the table says, with an option that was tried."""
    folder = folder_of_missing(missing, table.source) if missing else None
    if folder is None:
        return ""
    lie = f"Images of that name lie in {folder}"
    is_elsewhere = 2 * len(missing) > len(table) and not isinstance(data, LabelTable)
    for option in ("root", "images_folder") if is_elsewhere else ():  # where most are found, few were moved or lost
        with suppress(LabelwiseError):
            again = read_data(data, **{**reader, option: folder})
            if len(_missing_images(again)) < len(missing):
                return f"{lie}: read it with {option}={folder}" + (f" (--root {folder})." if option == "root" else ".")
    return f"{lie}."


def _bad_images(table: LabelTable, progress: ShowProgress) -> list[BadImage]:
    images = track(table.images, "Decoding images", shown=progress)
    # Every file is read whole, but few pixels are computed and none is kept.
    decoded = decode_many(images, lambda image: None, min_side=64)
    return [BadImage(row, error.path, error.reason) for row, (_, error) in enumerate(decoded) if error is not None]


def _problems(report: Inspection) -> Iterator[str]:
    labels, bad = report.labels, report.broken
    missing, undecodable = [one for one in bad if one.is_missing], [one for one in bad if not one.is_missing]
    across = [group for group in report.duplicates if len(set(group.splits)) > 1]
    conflicts = [group for group in report.duplicates if group.conflict]
    copies = [group for group in report.duplicates if len(set(group.splits)) == 1 and not group.conflict]
    never = [count.label for count in labels if not count.present]
    rare = [count.label for count in labels if 0 < count.present < FEW]
    if not labels:
        yield "There are no labels: every image has an empty list."
    if missing:
        found = counted(len(missing), "image is", "images are")
        fix = report.missing_fix or "Fetch what is missing, or correct the paths."
        yield f"{found} missing, the first: {missing[0].path}. {fix}"
    if undecodable:
        found, first = counted(len(undecodable), "image"), undecodable[0]
        yield (
            f"{found} cannot be decoded, the first: {first.path} ({first.reason}). Replace what is broken, or train "
            "with bad images skipped."
        )
    if across:
        found = counted(len(across), "image is", "images are")
        yield (
            f"{found} in several splits ({', '.join(across[0].images[:2])}): the model is tested on what it was "
            "trained on. Delete the copies, or make new splits with: labelwise data split"
        )
    if conflicts:
        found = counted(len(conflicts), "image occurs", "images occur")
        yield f"{found} again with different labels ({', '.join(conflicts[0].images[:2])}). Correct the labels."
    if copies:
        found = counted(len(copies), "image occurs", "images occur")
        yield f"{found} more than once in one split, with the same labels: copies count more often."
    if never:
        found = counted(len(never), "label has", "labels have")
        yield f"{found} no image ({shortened(never)}). Remove what cannot be learned or measured."
    if everywhere := [count.label for count in labels if count.present == report.images]:
        found = counted(len(everywhere), "label is", "labels are")
        yield f"{found} on every image ({shortened(everywhere)}). Add images without, or leave such labels out."
    if rare:
        found = counted(len(rare), "label has", "labels have")
        yield f"{found} fewer than {FEW} images ({shortened(rare)}). Collect more, merge or drop."
    if report.similar:
        shown = shortened([" and ".join(map(repr, group)) for group in report.similar])
        found = counted(len(report.similar), "group of labels has", "groups of labels have")
        yield (
            f"{found} almost the same name: {shown}. Correct the names; merge_variants=yes joins those that differ in "
            "case or spacing."
        )
    if report.inseparable:
        shown = shortened([" and ".join(map(repr, pair)) for pair in report.inseparable])
        found = counted(len(report.inseparable), "pair of labels always occurs", "pairs of labels always occur")
        yield f"{found} together: {shown}. Nothing tells them apart: join them, or add images with one of them."
    for split in filter(None, report.splits):
        unseen = [count.label for count in labels if count.present and not count.per_split[split]]
        if unseen:
            found = counted(len(unseen), "label has", "labels have")
            yield f"{found} no image in the split {split!r} ({shortened(unseen)})."
    if bare := report.images_by_label_count.get(0, 0):
        found = counted(bare, "image has", "images have")
        yield f"{found} no label. Remove what nobody has labelled, or mark its labels unknown."
    if not any(report.splits):
        yield "There are no splits. Training makes them, or you: labelwise data split DATA --out split.csv"


# ---- co-occurrence


def _pairs(table: LabelTable, positives: np.ndarray, most: int) -> tuple[list[Pair], list[Pair], list[list[str]]]:
    """The pairs that occur together most and least often, and those that always do."""
    columns = np.sort(np.argsort(-positives, kind="stable")[:_PAIRED_LABELS])
    columns = columns[positives[columns] > 0]
    if len(columns) < 2:
        return [], [], []
    counts = np.zeros((len(columns), len(columns)))
    for start in range(0, len(table), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(table)))
        present = (table.targets(rows)[:, columns] == PRESENT).astype(np.float32)  # [m, n]
        counts += present.T @ present
    a, b = np.triu_indices(len(columns), 1)
    expected = counts.diagonal()[a] * counts.diagonal()[b] / len(table)
    seen = counts[a, b]

    def pair(index: int) -> Pair:
        first, second, n = int(a[index]), int(b[index]), float(seen[index])
        return Pair(
            table.labels[columns[first]],
            table.labels[columns[second]],
            int(n),
            n / counts[first, first],
            n / counts[second, second],
            n / expected[index],
        )

    # In standard deviations of a Poisson count: a surprise of 2 images is none, one of 200 is.
    surprise = (seen - expected) / np.sqrt(expected)
    together = [pair(index) for index in np.argsort(-surprise, kind="stable")[:most].tolist() if surprise[index] > 0]
    apart = [pair(index) for index in np.argsort(surprise, kind="stable")[:most].tolist() if surprise[index] < 0]
    always = np.flatnonzero((seen >= _ALWAYS) & (seen == counts.diagonal()[a]) & (seen == counts.diagonal()[b]))
    return together, apart, [[pair(index).a, pair(index).b] for index in always.tolist()]


# ---- names


def _typing_errors(images: dict[str, int]) -> list[list[str]]:
    """Pairs of a frequent and a rare name that differ in a letter or two.

    >>> _typing_errors({"snowboard": 40, "snowbord": 1, "label1": 99, "label2": 1, "horse": 80, "house": 70})
    [['snowboard', 'snowbord']]
    """
    often = [name for name, count in images.items() if count >= FEW]
    found = []
    for rare, count in images.items() if len(images) <= _COMPARED_NAMES else ():
        others = [name for name in often if _TIMES * max(1, count) <= images[name]]
        near = (name for name in get_close_matches(rare, others, cutoff=_ALIKE) if not _is_same(name, rare))
        found += [[name, rare] for name in islice(near, 1)]
    return found


def _is_same(one: str, other: str) -> bool:
    """Whether names differ in numbers only, which count something, or are variants, which are told as such."""
    return re.sub(r"\d", "", one) == re.sub(r"\d", "", other) or variant_key(one) == variant_key(other)
