"""A torch dataset over a table, and a loader that counts and names broken images instead of failing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from labelwise.core.errors import LabelwiseError
from labelwise.data.images import BadImage, BadImageError, OnBadImage, load_image
from labelwise.data.stream_table import AnyTable


class Sample(NamedTuple):
    image: Tensor  # [3, H, W]
    target: Tensor  # [N] int8 in {1, 0, -1}
    row: int  # of the table


class Batch(NamedTuple):
    images: Tensor  # [B, 3, H, W]
    targets: Tensor  # [B, N] int8 in {1, 0, -1}
    rows: Tensor  # [B] int64: of the table


Problem = BadImage | LabelwiseError  # an image to skip, if that is allowed, or a mistake that ends the run


@dataclass(eq=False)
class ImageDataset(Dataset[Sample | Problem]):
    """The images of a table through a transform.

    `bad_images` lists the broken images met so far (through `ImageLoader`, also those that worker processes met).

    Args:
        table: Images and labels.
        transform: From a PIL image to a tensor [3, H, W]. Its attribute `min_side`, if any, is the shorter side that it
            needs (see `load_image`).
        on_bad_image: Whether a broken image is an error or is skipped.
        seed: What is random in the transform then depends on (seed, epoch, row) alone: the images are the same for any
            number of workers, in any order and after a restart. Call `set_epoch` before each pass.
        copies: Row r is also there as r + M, r + 2 M, ..., each time augmented anew (repeated augmentation).
    """

    table: AnyTable
    transform: Callable[[Image.Image], Tensor]
    on_bad_image: OnBadImage = "error"
    seed: int | None = None
    copies: int = 1

    def __post_init__(self) -> None:
        self.min_side: int | None = getattr(self.transform, "min_side", None)
        self._bad: dict[int, BadImage] = {}
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # persistent workers see it change

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    @property
    def bad_images(self) -> list[BadImage]:
        return [self._bad[row] for row in sorted(self._bad)]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> Sample | Problem:
        number = range(self.copies * len(self.table))[number]  # negative ones count from the end; others raise
        row = number % len(self.table)
        # A worker hands a problem over as a value: torch would turn an exception into a page of tracebacks.
        try:
            image = load_image(self.table.image(row), min_side=self.min_side)
            target = torch.from_numpy(self.table.target(row))
        except BadImageError as error:
            bad = BadImage(row, error.path, error.reason)
            if get_worker_info() is None:
                self.note_bad_image(bad)
            return bad
        except LabelwiseError as error:
            if get_worker_info() is None:
                raise
            return error
        return Sample(self._transformed(image, number), target, row)

    def note_bad_image(self, bad: BadImage) -> None:
        """Count it, or raise, depending on `on_bad_image`."""
        if self.on_bad_image == "error":
            raise BadImageError(bad.path, bad.reason).skippable(self.table.where(bad.row))
        self._bad[bad.row] = bad

    def _transformed(self, image: Image.Image, number: int) -> Tensor:
        if self.seed is None:
            return self.transform(image)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_mixed_seed(self.seed, int(self._epoch), number))
            return self.transform(image)


class ImageLoader(DataLoader[Sample | Problem]):
    """A DataLoader over an `ImageDataset` that yields `Batch`es of the good images and notes the others.

    A batch without any good image is skipped; with `every_batch`, for callers that count batches, it raises.
    """

    dataset: ImageDataset

    def __init__(self, dataset: ImageDataset, *, every_batch: bool = False, **options: Any) -> None:
        super().__init__(dataset, collate_fn=collate, **options)
        self.every_batch = every_batch

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # a generator: torch types its own iterator class
        for batch, problems in super().__iter__():
            for problem in problems:
                if isinstance(problem, LabelwiseError):
                    raise problem
                self.dataset.note_bad_image(problem)
            if batch is not None:
                yield batch
            elif self.every_batch:
                raise LabelwiseError(
                    f"none of the {len(problems)} images of a batch can be decoded, e.g. {problems[0].path!r}; "
                    "remove broken images from the data (labelwise data inspect lists them), or use larger batches"
                )


def collate(items: list[Sample | Problem]) -> tuple[Batch | None, list[Problem]]:
    """The good images as a batch (None if there is none), and the problems with the others."""
    good = [item for item in items if isinstance(item, Sample)]
    bad = [item for item in items if not isinstance(item, Sample)]
    if not good:
        return None, bad
    images, targets, rows = zip(*good, strict=True)
    return Batch(torch.stack(images), torch.stack(targets), torch.tensor(rows)), bad


def _mixed_seed(seed: int, epoch: int, row: int) -> int:
    """One 63-bit seed from three numbers, far apart for neighbours (the finaliser of SplitMix64).

    >>> _mixed_seed(0, 0, 1) != _mixed_seed(0, 1, 0)
    True
    """
    value = 0
    for part in (seed, epoch, row):
        value = (value + part + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 31
    return value >> 1
