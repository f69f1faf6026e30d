"""Find the maps of a table's images in a store, and compute those that are not there."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from labelwise.data.dataset import ImageDataset
from labelwise.data.images import BadImage
from labelwise.errors import LabelwiseError
from labelwise.features.compute import compute_maps, evaluating, file_digests
from labelwise.features.progress import progress_of
from labelwise.features.shard import Shard, entry_key
from labelwise.features.store import Store
from labelwise.features.writer import MapWriter

ROUNDS = 3  # of computing; a second one is needed only where files change meanwhile


class Builder:
    def __init__(
        self,
        images: ImageDataset,
        backbone: nn.Module,
        store: Store,
        variants: Sequence[bool],  # False: the picture as it is; True: mirrored
        *,
        batch_size: int,
        workers: int,
        progress: bool,
    ) -> None:
        self.images, self.backbone, self.store, self.variants = images, backbone, store, variants
        self.batch_size, self.workers, self.progress = batch_size, workers, progress
        with progress_of("Reading images", len(images), progress) as advance:
            self.digests = file_digests(images, advance)  # M

    def complete(self) -> None:
        """Afterwards every image has its maps in the store, or is among the bad ones."""
        if not self._missing():  # then no lock is needed, and a folder that cannot be written will do
            return
        with self.store.filling(), evaluating(self.backbone):
            rounds = 0
            while needed := self._missing():
                self.store.remove_damaged()
                if rounds == ROUNDS:
                    row = next(iter(needed))
                    raise LabelwiseError(
                        f"the features of {len(needed)} images, such as {self.images.table.images[row]!r}, are not in "
                        f"{str(self.store.folder)!r} after {ROUNDS} tries: the images change all the time, or the disk "
                        "does not keep what is written"
                    )
                self._compute(needed)
                rounds += 1

    def places(self, mirrored: bool) -> list[tuple[Shard, int] | None]:
        """Where the map of each image is, M; None for the bad ones."""
        return [self.store.places.get(entry_key(digest, mirrored)) for digest in self.digests]

    def _missing(self) -> dict[int, list[bool]]:
        """The variants to compute for each row, once what is stored has been checked. Equal files count once."""
        bad = {image.row for image in self.images.bad_images}
        first: dict[bytes, int] = {}
        for row, digest in enumerate(self.digests):
            if row not in bad:
                first.setdefault(digest, row)
        self.store.refresh()
        keys = [entry_key(digest, mirrored) for digest in first for mirrored in self.variants]
        with progress_of("Checking stored features", len(keys), self.progress) as advance:
            self.store.check(keys, advance)
        needed = {
            row: [mirrored for mirrored in self.variants if entry_key(digest, mirrored) not in self.store.places]
            for digest, row in first.items()
        }
        return {row: variants for row, variants in needed.items() if variants}

    def _compute(self, needed: dict[int, list[bool]]) -> None:
        writer = MapWriter(self.store)
        try:
            with progress_of("Computing features", len(needed), self.progress) as advance:
                for pictures, mirrored, maps in compute_maps(
                    self.images,
                    needed,
                    self.backbone,
                    batch_size=self.batch_size,
                    workers=self.workers,
                    advance=advance,
                ):
                    for picture in pictures:
                        self.digests[picture.row] = picture.digest
                    writer.add([entry_key(picture.digest, mirrored) for picture in pictures], maps)
        finally:
            writer.flush()  # what is finished is kept, also after Ctrl-C or at a bad image
        self._note_copies_of_bad_images()

    def _note_copies_of_bad_images(self) -> None:
        reasons = {self.digests[bad.row]: bad.reason for bad in self.images.bad_images if self.digests[bad.row]}
        for row, digest in enumerate(self.digests):
            if digest in reasons:
                self.images.note_bad_image(BadImage(row, self.images.table.images[row], reasons[digest]))
