"""Find the maps of a table's images in a store, and compute those that are not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from labelwise.data.dataset import ImageDataset
from labelwise.data.images import BadImage
from labelwise.engines.base import Engine
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
        variants: Sequence[bool],  # False: the picture as it is; True: mirrored
        *,
        batch_size: int,
        workers: int,
        progress: bool,
    ) -> None:
        self.images, self.backbone, self.variants = images, backbone, variants
        self.batch_size, self.workers, self.progress = batch_size, workers, progress
        with progress_of("Reading images", len(images), progress) as advance:
            self.digests = file_digests(images, advance)  # M

    def stored(self, store: Store) -> float:
        """The share of the maps needed that a store has already."""
        store.refresh()
        keys = {entry_key(digest, mirrored) for digest in self.digests if digest for mirrored in self.variants}
        return sum(key in store.places for key in keys) / max(1, len(keys))

    def complete(self, store: Store, engine: Callable[[], Engine]) -> None:
        """Afterwards every image has its maps in the store, or is among the bad ones. `engine` is opened if need be."""
        if not self._missing(store):  # then no lock is needed, and a folder that cannot be written will do
            return
        with store.filling(), evaluating(self.backbone):
            rounds = 0
            while needed := self._missing(store):
                store.remove_damaged()
                if rounds == ROUNDS:
                    row = next(iter(needed))
                    raise LabelwiseError(
                        f"the features of {len(needed)} images, such as {self.images.table.images[row]!r}, are not in "
                        f"{str(store.folder)!r} after {ROUNDS} tries: the images change all the time, or the disk "
                        "does not keep what is written"
                    )
                self._compute(needed, store, engine())
                rounds += 1

    def places(self, store: Store, mirrored: bool) -> list[tuple[Shard, int] | None]:
        """Where the map of each image is, M; None for the bad ones."""
        return [store.places.get(entry_key(digest, mirrored)) for digest in self.digests]

    def _missing(self, store: Store) -> dict[int, list[bool]]:
        """The variants to compute for each row, once what is stored has been checked. Equal files count once."""
        bad = {image.row for image in self.images.bad_images}
        first: dict[bytes, int] = {}
        for row, digest in enumerate(self.digests):
            if row not in bad:
                first.setdefault(digest, row)
        store.refresh()
        keys = [entry_key(digest, mirrored) for digest in first for mirrored in self.variants]
        with progress_of("Checking stored features", len(keys), self.progress) as advance:
            store.check(keys, advance)
        needed = {
            row: [mirrored for mirrored in self.variants if entry_key(digest, mirrored) not in store.places]
            for digest, row in first.items()
        }
        return {row: variants for row, variants in needed.items() if variants}

    def _compute(self, needed: dict[int, list[bool]], store: Store, engine: Engine) -> None:
        writer = MapWriter(store)
        try:
            with progress_of("Computing features", len(needed), self.progress) as advance:
                for pictures, mirrored, maps in compute_maps(
                    self.images,
                    needed,
                    engine,
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
