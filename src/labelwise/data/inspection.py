"""What is in a dataset and what is wrong with it: counts, co-occurrence, duplicates, broken images."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from labelwise.core.errors import shortened
from labelwise.core.progress import ShowProgress, track
from labelwise.core.tables import html_table, to_frame
from labelwise.data.decode import decode_many
from labelwise.data.images import BadImage
from labelwise.data.sources import as_table
from labelwise.data.splitting import duplicate_groups
from labelwise.data.table import PRESENT, LabelTable

if TYPE_CHECKING:
    import pandas

FEW = 10  # positives: a label with fewer is hardly learnable, and its AP is mostly luck
_PAIRED_LABELS = 500  # co-occurrence is counted between the most frequent labels only: memory grows with the square
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
    broken: list[BadImage] | None  # None: not decoded

    @property
    def problems(self) -> list[str]:
        """What to fix, worst first, one line each."""
        return find_problems(self)

    def __repr__(self) -> str:
        splits = ", ".join(f"{name or 'no split'} {count}" for name, count in self.splits.items())
        found = f"{len(self.problems)} problems" if self.problems else "no problems"
        return f"<Inspection {self.source!r}: {self.images} images, {len(self.labels)} labels; {splits}; {found}>"

    def _repr_html_(self) -> str:
        problems = "".join(f"<li>{escape(problem)}</li>" for problem in self.problems)
        header, rows = self._label_rows()
        return f"<p>{escape(repr(self))}</p><ul>{problems}</ul>{html_table(header, rows)}"

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        content = asdict(self) | {"problems": self.problems}
        if self.broken is not None:
            content["broken"] = [bad._asdict() for bad in self.broken]
        return content

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
    data: LabelTable | str | Path, *, decode: bool = True, pairs: int = 10, progress: ShowProgress = False
) -> Inspection:
    """Say what is in a dataset and what to fix.

    Args:
        data: A table, or what `open_data` takes. Missing images are then listed as broken.
        decode: Decode every image, to find the broken ones.
        pairs: How many pairs of labels to list that occur together, or avoid each other.
        progress: Whether to show it, or a callback.

    >>> inspect(LabelTable.from_lists(["a.jpg", "b.jpg"], [["cat"], []], source="photos"), decode=False).problems[0]
    '1 labels have fewer than 10 images (cat). Collect more, merge or drop them.'
    """
    table = as_table(data, check_files="no")
    positives, unknown = table.positives_per_label(), table.unknown_per_label()
    per_split = {split: table.select(split).positives_per_label() for split in table.split_names}
    counts = np.bincount(
        np.repeat(np.arange(len(table)), np.diff(table.indptr))[table.values == PRESENT], minlength=len(table)
    )  # [M]
    together, apart = _pairs(table, positives, pairs)
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
        duplicates=_duplicates(table, progress),
        broken=_broken(table, progress) if decode else None,
    )


def find_problems(report: Inspection) -> list[str]:
    """What to fix, worst first, one line each."""
    found = []
    if not report.labels:
        found.append("There are no labels: every image has an empty list.")
    if report.broken:
        found.append(
            f"{len(report.broken)} images cannot be decoded, the first: {report.broken[0].path} "
            f"({report.broken[0].reason}). Replace them, or train with bad images skipped."
        )
    across = [group for group in report.duplicates if len(set(group.splits)) > 1]
    if across:
        found.append(
            f"{len(across)} images are in several splits ({', '.join(across[0].images[:2])}): the model is tested on "
            "what it was trained on. Delete the copies, or make new splits with: labelwise data split"
        )
    conflicts = [group for group in report.duplicates if group.conflict]
    if conflicts:
        found.append(
            f"{len(conflicts)} images occur again with different labels ({', '.join(conflicts[0].images[:2])}). "
            "Correct them."
        )
    copies = len(report.duplicates) - len(set(map(id, across)) | set(map(id, conflicts)))
    if copies:
        found.append(f"{copies} images occur more than once in one split, with the same labels: they count more often.")
    empty = [count.label for count in report.labels if not count.present]
    if empty:
        found.append(
            f"{len(empty)} labels have no image ({shortened(empty)}). Remove them: they cannot be learned or measured."
        )
    few = [count.label for count in report.labels if 0 < count.present < FEW]
    if few:
        found.append(
            f"{len(few)} labels have fewer than {FEW} images ({shortened(few)}). Collect more, merge or drop them."
        )
    for split in (name for name in report.splits if name):
        missing = [count.label for count in report.labels if count.present and not count.per_split[split]]
        if missing:
            found.append(f"{len(missing)} labels have no image in the split {split!r} ({shortened(missing)}).")
    bare = report.images_by_label_count.get(0, 0)
    if bare:
        found.append(f"{bare} images have no label. If nobody labelled them, remove them or mark their labels unknown.")
    if not any(report.splits):
        found.append("There are no splits. Make them with: labelwise data split")
    return found


# ---- co-occurrence


def _pairs(table: LabelTable, positives: np.ndarray, most: int) -> tuple[list[Pair], list[Pair]]:
    columns = np.sort(np.argsort(-positives, kind="stable")[:_PAIRED_LABELS])
    columns = columns[positives[columns] > 0]
    if len(columns) < 2:
        return [], []
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
    return together, apart


# ---- files


def _duplicates(table: LabelTable, progress: ShowProgress) -> list[DuplicateGroup]:
    return [
        DuplicateGroup(
            [table.images[row] for row in rows],
            [table.splits[row] for row in rows],
            conflict=bool((np.ptp(table.targets(rows), axis=0) > 0).any()),
        )
        for rows in duplicate_groups(table.images, progress)
    ]


def _broken(table: LabelTable, progress: ShowProgress) -> list[BadImage]:
    images = (table.images[row] for row in track(range(len(table)), "Decoding images", shown=progress))
    return [
        BadImage(row, error.path, error.reason)
        for row, (_, error) in enumerate(decode_many(images, _Decodable()))
        if error is not None
    ]


class _Decodable:
    """Reads the whole file, but computes few pixels and keeps none."""

    min_side = 64

    def __call__(self, image: Image.Image) -> None:
        return None
