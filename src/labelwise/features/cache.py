"""The feature maps of a table's images, computed once and ready to train on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.core.arrays import Ints, Mask
from labelwise.core.errors import LabelwiseError, counted
from labelwise.core.files import cache_folder, sha256
from labelwise.core.progress import ShowProgress, progress_of, report
from labelwise.data.images import BadImage, BadImageError, OnBadImage, read_image
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.table import LabelTable
from labelwise.engines.choose import open_engine
from labelwise.features.store import Location, MapWriter, Store, describe_store, entry_key, fingerprint
from labelwise.loading.augment import eval_transform
from labelwise.loading.dataset import ImageDataset, ImageLoader
from labelwise.model.network import evaluating
from labelwise.runtime.sessions import FAMILIES, Engine, EngineName, Family

_HASHED_AT_ONCE = 1024
_ROUNDS = 3  # of computing; a second one is needed only if files change meanwhile


class FeatureCache:
    """Feature maps of a frozen backbone; made by `build`. They are memory-mapped: as much stays in memory as fits."""

    rows: Ints  # the table's rows that have features, in their order
    bad_images: list[BadImage]  # the other rows
    shape: tuple[int, int, int]  # of a map: C, H, W

    def __init__(self, locations: Sequence[Sequence[Location | None]], bad_images: list[BadImage]) -> None:
        """`locations`: for each variant (plain, then mirrored if wanted), where the map of each row is; None if bad."""
        shards = {found[0]: None for variant in locations for found in variant if found}  # an ordered set
        number = {shard: i for i, shard in enumerate(shards)}
        self._maps = [shard.maps.flatten(1) for shard in shards]  # [n, H * W * C] each
        self._slots = np.array(
            [[(number[found[0]], found[1]) if found else (-1, -1) for found in variant] for variant in locations]
        )  # [variants, M, 2]: shard and slot
        ((height, width, channels),) = {shard.maps.shape[1:] for shard in shards}
        self.shape = (channels, height, width)
        self.rows = np.flatnonzero((self._slots >= 0).all(axis=(0, 2)))
        self.bad_images = bad_images

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.shape))
        mirrored = ", also mirrored" if len(self._slots) > 1 else ""
        return f"<FeatureCache: {counted(len(self.rows), 'image')}, maps of {size} (C, H, W){mirrored}>"

    @classmethod
    def build(
        cls,
        table: LabelTable,
        backbone: nn.Module,
        preprocessing: Preprocessing,
        *,
        flips: bool = True,
        folder: Path | None = None,
        batch_size: int = 32,
        workers: int = 2,
        on_bad_image: OnBadImage = "error",
        progress: ShowProgress = True,
        engine: EngineName = "torch",
    ) -> FeatureCache:
        """Read the maps of all images from the store; compute those that are missing.

        Stored maps are found by the content of the image file and verified before they are used. An interrupted build
        keeps what it has finished; the next one resumes there and gives the same maps, bit for bit.

        Args:
            table: The images.
            backbone: From inputs [B, 3, H, W] to maps [B, C, H', W'].
            preprocessing: From images to inputs.
            flips: Also the maps of the mirrored images.
            folder: Where stores are kept. Default: `default_folder()`.
            batch_size: Of the computation.
            workers: Processes that decode.
            on_bad_image: Whether a broken image is an error or is skipped.
            progress: Whether to show it, or a callback.
            engine: What computes the maps. Engines agree closely, but not in the last bits, so each has its own store.
                "auto" takes the store that has at least half of the maps, else the fastest engine (see `open_engine`).

        >>> cache = FeatureCache.build(table, model.backbone, preprocessing)  # doctest: +SKIP
        >>> cache.batch(cache.rows[:32]).shape  # doctest: +SKIP
        torch.Size([32, 1280, 7, 7])
        """
        images = ImageDataset(table, eval_transform(preprocessing), on_bad_image, target=file_digest)
        variants = (False, True) if flips else (False,)
        builder = MapBuilder(images, backbone, variants, batch_size, workers, progress)

        def store_of(family: Family) -> Store:
            about = describe_store(backbone, preprocessing, family)
            return Store(folder or default_folder(), fingerprint(backbone, preprocessing, family), about)

        def opened(name: EngineName) -> Engine:
            with evaluating(backbone):
                work = len(table) * len(variants)
                say = (lambda text: report(f"Features: {text}")) if progress else None
                return open_engine(name, backbone, size=preprocessing.size, images=work, batch_size=batch_size, say=say)

        if engine == "auto":
            stores = {family: store_of(family) for family in FAMILIES}
            shares = {family: builder.stored(store) for family, store in stores.items()}
            chosen = max(FAMILIES, key=lambda family: shares[family])
            if shares[chosen] < 0.5:
                chosen = opened("auto").family
            store = stores[chosen]
        else:
            chosen, store = engine, store_of(engine)
        builder.complete(store, lambda: opened(chosen))
        if len(images.bad_images) == len(table):
            raise LabelwiseError(f"{table.source}: none of its images can be decoded")
        return cls([builder.locations(store, mirrored) for mirrored in variants], images.bad_images)

    def batch(self, rows: Tensor | Ints, flip: Tensor | Mask | bool = False) -> Tensor:
        """The maps of these rows of the table, float32 [B, C, H, W]; of the mirrored images where `flip` is true.

        Memory order is channels last, as stored: the tokens [B, H * W, C] of the query heads are a view of it.
        """
        wanted = np.asarray(rows)
        mirrored = np.broadcast_to(np.asarray(flip, bool), wanted.shape).astype(np.int64)
        if mirrored.any() and len(self._slots) == 1:
            raise ValueError("this cache has no mirrored features; build it with flips=True")
        slots = self._slots[mirrored, wanted]  # [B, 2]
        if (slots < 0).any():
            raise ValueError(f"row {wanted[(slots < 0).any(axis=1)][0]} has no features; choose among `rows`")
        channels, height, width = self.shape
        out = torch.empty(len(wanted), height * width * channels)
        # Row by row: each copy converts as it reads, several times faster than gathering halves and converting them.
        for target, (shard, slot) in zip(out.unbind(), slots.tolist(), strict=True):
            target.copy_(self._maps[shard][slot])
        return out.view(-1, height, width, channels).permute(0, 3, 1, 2)


def default_folder() -> Path:
    """`features` in the folder that the variable LABELWISE_CACHE names, else in ~/.cache/labelwise."""
    return cache_folder() / "features"


# ---- computing: worker processes decode, the engine runs in this one


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
        with store.filling(self.digests), evaluating(self.backbone):
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
