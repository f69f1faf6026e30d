"""Compute the feature maps that a store lacks: worker processes decode, the engine runs in this one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.core.errors import LabelwiseError, counted
from labelwise.core.files import sha256
from labelwise.core.progress import ShowProgress, progress_of
from labelwise.data.images import BadImage, BadImageError, read_image
from labelwise.features.store import Location, MapWriter, Store, entry_key
from labelwise.loading.dataset import ImageDataset, ImageLoader
from labelwise.runtime.sessions import Engine

_HASHED_AT_ONCE = 1024
_ROUNDS = 3  # of computing; a second one is needed only if files change meanwhile


def file_digest(row: int, content: bytes) -> Tensor:
    """SHA-256 of an image file as a tensor, uint8 [32]."""
    return torch.frombuffer(bytearray(sha256(content).digest()), dtype=torch.uint8)


@dataclass
class MapBuilder:
    """Computes the maps of a table's images that a store lacks.

    `images` has `file_digest` as its target: what is stored belongs to the very bytes that were decoded.
    """

    images: ImageDataset
    backbone: nn.Module
    variants: Sequence[bool]  # False: the image itself; True: mirrored
    batch_size: int
    workers: int
    progress: ShowProgress

    def __post_init__(self) -> None:
        self.digests: list[bytes] = []  # SHA-256 of each row's file, M; empty for the files that cannot be read
        with (
            ThreadPoolExecutor(os.cpu_count()) as pool,  # reading and hashing release Python's lock
            progress_of("Reading images", len(self.images), self.progress) as advance,
        ):
            for first in range(0, len(self.images), _HASHED_AT_ONCE):
                block = range(first, min(first + _HASHED_AT_ONCE, len(self.images)))
                for found in pool.map(self._digest, block):
                    if isinstance(found, BadImage):
                        self.images.note_bad_image(found)
                    self.digests.append(b"" if isinstance(found, BadImage) else found)
                advance(len(block))

    def _digest(self, row: int) -> bytes | BadImage:
        try:
            return sha256(read_image(self.images.table.images[row]).data).digest()
        except BadImageError as error:
            return BadImage(row, error.path, error.reason)

    def stored(self, store: Store) -> float:
        """The share of the needed maps that a store has already."""
        store.refresh()
        keys = {entry_key(digest, mirrored) for digest in self.digests if digest for mirrored in self.variants}
        return sum(key in store.index for key in keys) / max(1, len(keys))

    def complete(self, store: Store, engine: Callable[[], Engine]) -> None:
        """Compute the maps that a store lacks; `engine` is opened only if there are any."""
        if not self._missing(store):  # then no lock is needed, and a read-only folder is enough
            return
        with store.filling(), evaluating(self.backbone):
            rounds = 0
            while needed := self._missing(store):
                store.remove_damaged()
                if rounds == _ROUNDS:
                    row = next(iter(needed))
                    raise LabelwiseError(
                        f"the features of {counted(len(needed), 'image', 'images')}, e.g. "
                        f"{self.images.table.images[row]!r}, are not in {str(store.folder)!r} after {_ROUNDS} tries: "
                        "the images keep changing, or the disk does not keep what is written"
                    )
                self._compute(needed, store, engine())
                rounds += 1

    def locations(self, store: Store, mirrored: bool) -> list[Location | None]:
        """Where the map of each image is, M; None for the bad ones."""
        return [store.index.get(entry_key(digest, mirrored)) for digest in self.digests]

    def _missing(self, store: Store) -> dict[int, list[bool]]:
        """Check what is stored; the variants that remain to be computed for each row. Equal files count once."""
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
            row: [mirrored for mirrored in self.variants if entry_key(digest, mirrored) not in store.index]
            for digest, row in first.items()
        }
        return {row: variants for row, variants in needed.items() if variants}

    def _compute(self, needed: dict[int, list[bool]], store: Store, engine: Engine) -> None:
        workers = self.workers if len(needed) > self.batch_size else 0  # starting processes for one batch does not pay
        batches = ImageLoader(self.images, batch_size=self.batch_size, sampler=list(needed), num_workers=workers)
        writer = MapWriter(store)
        try:
            with progress_of("Computing features", len(needed), self.progress) as advance:
                for batch in batches:
                    rows = batch.rows.tolist()
                    for row, digest in zip(rows, batch.targets.numpy(), strict=True):
                        self.digests[row] = bytes(digest)  # the file may have changed since it was listed
                    for mirrored in self.variants:
                        wanted = [number for number, row in enumerate(rows) if mirrored in needed[row]]
                        if wanted:
                            chosen, inputs = [rows[number] for number in wanted], batch.images[wanted]
                            maps = _forward(engine, inputs.flip(-1) if mirrored else inputs, self.batch_size)
                            _require_finite(maps, [self.images.table.images[row] for row in chosen])
                            writer.add([entry_key(self.digests[row], mirrored) for row in chosen], maps)
                    advance(len(rows))
        finally:
            writer.flush()  # what is finished is kept, even after Ctrl-C or a bad image
        # Copies of bad images are bad, too.
        reasons = {self.digests[bad.row]: bad.reason for bad in self.images.bad_images if self.digests[bad.row]}
        for row, digest in enumerate(self.digests):
            if digest in reasons:
                self.images.note_bad_image(BadImage(row, self.images.table.images[row], reasons[digest]))


@contextmanager
def evaluating(backbone: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each module returns to its own mode."""
    training = [module for module in backbone.modules() if module.training]
    backbone.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _forward(engine: Engine, inputs: Tensor, batch_size: int) -> Tensor:
    """[n, 3, H, W] -> [n, h, w, C] on the CPU.

    Always runs a full batch: the last bits of a convolution depend on the batch size, and a map must not depend on how
    many others happened to be missing, e.g. after an interrupted build.
    """
    full = np.zeros((batch_size, *inputs.shape[1:]), np.float32)
    full[: len(inputs)] = inputs.numpy()
    maps = torch.from_numpy(engine(full))
    if maps.dim() != 4:
        raise LabelwiseError(f"the backbone gives {list(maps.shape)}, not maps [B, C, H, W]: they cannot be cached")
    return maps[: len(inputs)].permute(0, 2, 3, 1).contiguous()


def _require_finite(maps: Tensor, paths: list[str]) -> None:
    finite = maps.isfinite().flatten(1).all(dim=1)  # [n]
    if not finite.all():
        path = paths[int(finite.int().argmin())]
        raise LabelwiseError(f"the backbone gives NaN or infinity for image {path!r}; check its weights")
