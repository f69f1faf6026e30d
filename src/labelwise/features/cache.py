"""The feature maps of a table's images, computed once and ready to train on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.core import terminal
from labelwise.core.arrays import Floats, Ints, Mask
from labelwise.core.environment import thread_count
from labelwise.core.errors import LabelwiseError, counted
from labelwise.core.files import cache_folder, sha256
from labelwise.core.progress import ShowProgress, progress_of
from labelwise.data.decode import TableImages
from labelwise.data.images import BadImage, BadImageError, Encoded, OnBadImage, read_image
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.stream_table import AnyTable
from labelwise.engines.choose import open_engine, run_full_batch
from labelwise.features.store import Location, MapWriter, Store, advise, describe_store, entry_key, fingerprint
from labelwise.model.network import evaluating
from labelwise.runtime.sessions import FAMILIES, Engine, EngineName, Family

_HASHED_AT_ONCE = 1024
_ENOUGH_STORED = 0.5  # of the maps, to go on with the engine that has computed them
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
        for maps in self._maps:
            advise("random", maps)
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
        table: AnyTable,
        backbone: nn.Module,
        preprocessing: Preprocessing,
        *,
        flips: bool = True,
        folder: Path | None = None,
        batch_size: int = 32,
        workers: int = 0,
        on_bad_image: OnBadImage = "error",
        progress: ShowProgress = True,
        engine: EngineName = "torch",
        engines: dict[EngineName, Engine] | None = None,
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
            workers: Threads that decode; 0: one per core.
            on_bad_image: Whether a broken image is an error or is skipped.
            progress: Whether to show it, or a callback.
            engine: What computes the maps. Engines agree closely, but not in the last bits, so each has its own store.
                "auto" takes the store that has at least half of the maps, else the fastest engine (see `open_engine`).
            engines: Engines of this backbone that are open; those that are opened here are added, for the next table.

        >>> cache = FeatureCache.build(table, model.backbone, preprocessing)  # doctest: +SKIP
        >>> cache.batch(cache.rows[:32]).shape  # doctest: +SKIP
        torch.Size([32, 1280, 7, 7])
        """
        variants = (False, True) if flips else (False,)
        images = TableImages(table, preprocessing, on_bad_image, workers)
        builder = MapBuilder(images, backbone, variants, batch_size, progress)
        open_engines = {} if engines is None else engines

        def opened(name: EngineName) -> Engine:
            if name in open_engines:
                return open_engines[name]
            with evaluating(backbone):
                work = len(table) * len(variants)
                say = (lambda text: terminal.say(f"Features: {text}", stderr=True)) if progress else None
                batches: dict[str, Any] = {"batch_size": batch_size, "full_batches": True}
                found = open_engine(name, backbone, size=preprocessing.size, images=work, **batches, say=say)
            open_engines[name] = open_engines[found.family] = found
            return found

        if engine == "auto":
            stores = {family: open_store(backbone, preprocessing, family, folder) for family in FAMILIES}
            shares = {family: builder.stored(store) for family, store in stores.items()}
            chosen = max(FAMILIES, key=lambda family: shares[family])
            if shares[chosen] < _ENOUGH_STORED:
                chosen = opened("auto").family
            store = stores[chosen]
        else:
            chosen, store = engine, open_store(backbone, preprocessing, engine, folder)
        builder.complete(store, lambda: opened(chosen))
        if len(images.bad_images) == len(table):
            raise LabelwiseError(f"{table.source}: none of its images can be decoded")
        bad_images = [images.bad_images[row] for row in sorted(images.bad_images)]
        return cls([builder.locations(store, mirrored) for mirrored in variants], bad_images)

    @staticmethod
    def stored_share(table: AnyTable, backbone: nn.Module, preprocessing: Preprocessing, *, flips: bool) -> float:
        """The share of the maps of these images that `build` need not compute: 0 where another engine may compute all
        of them anew. Images that cannot be read do not count."""
        images = TableImages(table, preprocessing, "skip")
        builder = MapBuilder(images, backbone, (False, True) if flips else (False,), 1, progress=False)
        share = max(builder.stored(open_store(backbone, preprocessing, family)) for family in FAMILIES)
        return share if share >= _ENOUGH_STORED else 0.0

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
        maps = [self._maps[shard][slot] for shard, slot in slots.tolist()]
        for one in maps:  # of a cache larger than memory, the disk then reads these at once, and nothing else
            advise("willneed", one)
        # Row by row: each copy converts as it reads, several times faster than gathering halves and converting them.
        for target, one in zip(out.unbind(), maps, strict=True):
            target.copy_(one)
        return out.view(-1, height, width, channels).permute(0, 3, 1, 2)


def default_folder() -> Path:
    """`features` in the folder that the variable LABELWISE_CACHE names, else in ~/.cache/labelwise."""
    return cache_folder() / "features"


def open_store(backbone: nn.Module, preprocessing: Preprocessing, family: Family, folder: Path | None = None) -> Store:
    about = describe_store(backbone, preprocessing, family)
    return Store(folder or default_folder(), fingerprint(backbone, preprocessing, family), about)


# ---- computing: threads decode, the engine runs in this one


class MapBuilder:
    """Computes the maps of a table's images that a store lacks; `variants`: False for an image, True for its mirror."""

    def __init__(
        self,
        images: TableImages,
        backbone: nn.Module,
        variants: Sequence[bool],
        batch_size: int,
        progress: ShowProgress,
    ) -> None:
        self.images, self.backbone, self.variants = images, backbone, variants
        self.batch_size, self.progress = batch_size, progress
        self.digests = [b""] * len(images.table)  # SHA-256 of each row's file, M; empty for those that cannot be read
        with (
            ThreadPoolExecutor(thread_count()) as pool,  # reading and hashing release Python's lock
            progress_of("Reading images", len(self.digests), progress) as advance,
        ):
            for first in range(0, len(self.digests), _HASHED_AT_ONCE):
                block = range(first, min(first + _HASHED_AT_ONCE, len(self.digests)))
                for row, error in zip(block, pool.map(self._failure, block), strict=True):
                    if error is not None:
                        images.note_bad_image(row, error)
                advance(len(block))

    def _failure(self, row: int) -> BadImageError | None:
        try:
            self._read(row)
        except BadImageError as error:
            return error
        return None

    def _read(self, row: int) -> Encoded:
        """A row's file. What is stored belongs to the very bytes that were decoded: the file may change meanwhile."""
        file = read_image(self.images.table.image(row))
        self.digests[row] = sha256(file.data).digest()
        return file

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
        first: dict[bytes, int] = {}
        for row, digest in enumerate(self.digests):
            if row not in self.images.bad_images:
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
        writer = MapWriter(store)
        try:
            with progress_of("Computing features", len(needed), self.progress) as advance:
                for rows, inputs in self.images.batches(self.batch_size, needed, self._read):
                    for mirrored in self.variants:
                        wanted = [number for number, row in enumerate(rows) if mirrored in needed[row]]
                        if wanted:
                            views = inputs[wanted, :, :, ::-1] if mirrored else inputs[wanted]
                            maps = _forward(engine, views, self.batch_size)
                            chosen = [rows[number] for number in wanted]
                            _require_finite(maps, [self.images.table.images[row] for row in chosen])
                            writer.add([entry_key(self.digests[row], mirrored) for row in chosen], maps)
                    advance(len(rows))
        finally:
            writer.flush()  # what is finished is kept, even after Ctrl-C or a bad image
        # Copies of bad images are bad, too.
        bad_images = self.images.bad_images
        reasons = {self.digests[row]: bad.reason for row, bad in bad_images.items() if self.digests[row]}
        for row, digest in enumerate(self.digests):
            if digest in reasons:
                self.images.note_bad_image(row, BadImageError(self.images.table.images[row], reasons[digest]))


def _forward(engine: Engine, inputs: Floats, batch_size: int) -> Tensor:
    """[n, 3, H, W] -> [n, h, w, C] on the CPU."""
    maps = torch.from_numpy(run_full_batch(engine, inputs, batch_size))
    if maps.dim() != 4:
        raise LabelwiseError(f"the backbone gives {list(maps.shape)}, not maps [B, C, H, W]: they cannot be cached")
    return maps.permute(0, 2, 3, 1)


def _require_finite(maps: Tensor, paths: list[str]) -> None:
    finite = maps.sum(dim=(1, 2, 3)).isfinite()  # [n]; a mask of all values would take longer than a convolution
    if not finite.all():
        path = paths[int(finite.int().argmin())]
        raise LabelwiseError(f"the backbone gives NaN or infinity for image {path!r}; check its weights")
