"""A torch dataset over a `LabelTable`, and a loader that survives, counts and names broken pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from labelwise.data.images import BadImage, BadImageError, OnBadImage, load_image
from labelwise.data.table import LabelTable
from labelwise.errors import LabelwiseError


class Sample(NamedTuple):
    image: Tensor  # [3, H, W]
    target: Tensor  # [N] int8 in {1, 0, -1}
    row: int  # of the table


class Batch(NamedTuple):
    images: Tensor  # [B, 3, H, W]
    targets: Tensor  # [B, N] int8 in {1, 0, -1}
    rows: Tensor  # [B] int64: of the table


class ImageDataset(Dataset[Sample | BadImage]):
    """The images of `table` through `transform`.

    With a `seed`, what is random in the transform depends on (seed, epoch, row) alone: the same pictures come out for
    any number of workers, in any order and after a restart. Call `set_epoch` before each pass. With `copies`, row r is
    also there as r + M, r + 2 M, ..., each time varied anew (repeated augmentation).

    `on_bad_image="skip"` goes on without broken pictures; `bad_images` lists those met so far (through `ImageLoader`,
    also when worker processes met them).
    """

    def __init__(
        self,
        table: LabelTable,
        transform: Callable[[Image.Image], Tensor],
        on_bad_image: OnBadImage = "error",
        seed: int | None = None,
        copies: int = 1,
    ) -> None:
        self.table, self.transform, self.on_bad_image, self.seed = table, transform, on_bad_image, seed
        self.copies = copies
        self.at_least: int | None = getattr(transform, "at_least", None)
        self._bad: dict[int, BadImage] = {}
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that live on see it change

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    @property
    def bad_images(self) -> list[BadImage]:
        return [self._bad[row] for row in sorted(self._bad)]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> Sample | BadImage:
        number = range(self.copies * len(self.table))[number]  # negative ones count from the end; others raise
        row = number % len(self.table)
        path = self.table.images[row]
        try:
            picture = load_image(path, at_least=self.at_least)
        except BadImageError as error:
            bad = BadImage(row, path, error.reason)
            if get_worker_info() is None:
                self.note_bad_image(bad)
            # A worker hands it over as a value: torch would turn an exception into a page of tracebacks.
            return bad
        return Sample(self._transformed(picture, number), torch.from_numpy(self.table.target(row)), row)

    def note_bad_image(self, bad: BadImage) -> None:
        """Count it, or raise, as `on_bad_image` says."""
        if self.on_bad_image == "error":
            raise LabelwiseError(
                f"{self.table.where(bad.row)}: {BadImageError(bad.path, bad.reason)}. "
                "Fix it, or add --on-bad-image skip."
            )
        self._bad[bad.row] = bad

    def _transformed(self, picture: Image.Image, number: int) -> Tensor:
        if self.seed is None:
            return self.transform(picture)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_mixed_seed(self.seed, int(self._epoch), number))
            return self.transform(picture)


class ImageLoader(DataLoader[Sample | BadImage]):
    """A DataLoader over an `ImageDataset` that yields `Batch`es of the good pictures and takes note of the others.

    A batch without any good picture is passed over; with `every_batch`, where batches are counted, it raises.
    """

    dataset: ImageDataset

    def __init__(self, dataset: ImageDataset, *, every_batch: bool = False, **options: Any) -> None:
        super().__init__(dataset, collate_fn=collate, **options)
        self.every_batch = every_batch

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # a generator: torch types its own iterator class
        for batch, bad_images in super().__iter__():
            for bad in bad_images:
                self.dataset.note_bad_image(bad)
            if batch is not None:
                yield batch
            elif self.every_batch:
                raise LabelwiseError(
                    f"none of the {len(bad_images)} images of a batch can be decoded, such as {bad_images[0].path!r}. "
                    "Take broken images out of the data (labelwise data inspect lists them), or raise --batch-size."
                )


def collate(items: list[Sample | BadImage]) -> tuple[Batch | None, list[BadImage]]:
    """The good ones as a batch (None if there is none), and the bad ones."""
    good = [item for item in items if isinstance(item, Sample)]
    bad = [item for item in items if isinstance(item, BadImage)]
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
