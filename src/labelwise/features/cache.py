"""The maps of a table's images, ready to train on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import Tensor, nn

from labelwise.cache_folder import cache_folder
from labelwise.data.dataset import ImageDataset
from labelwise.data.images import BadImage, OnBadImage
from labelwise.data.table import LabelTable
from labelwise.data.transforms import eval_transform
from labelwise.engines.base import FAMILIES, Engine, EngineName, Family
from labelwise.engines.choose import open_engine
from labelwise.errors import LabelwiseError
from labelwise.features.build import Builder
from labelwise.features.compute import evaluating
from labelwise.features.fingerprint import describe, fingerprint
from labelwise.features.shard import Shard
from labelwise.features.store import Store
from labelwise.preprocessing import Preprocessing


def default_folder() -> Path:
    """`features` in the folder that the variable LABELWISE_CACHE names, else in ~/.cache/labelwise."""
    return cache_folder() / "features"


class FeatureCache:
    """Made by `build`. It is read from memory-mapped files: as much of it stays in memory as there is room for."""

    rows: npt.NDArray[np.int64]  # the table's rows that have features, in their order
    bad_images: list[BadImage]  # the other rows
    shape: tuple[int, int, int]  # of a map: C, H, W

    def __init__(self, places: Sequence[Sequence[tuple[Shard, int] | None]], bad_images: list[BadImage]) -> None:
        """`places`: for each variant (plain, then mirrored if there is that) the place of each row's map, if any."""
        shards = {place[0]: None for variant in places for place in variant if place}  # a set in order
        number = {shard: i for i, shard in enumerate(shards)}
        self._maps = [shard.maps.flatten(1) for shard in shards]  # [n, H * W * C] each
        self._places = np.array(
            [[(number[place[0]], place[1]) if place else (-1, -1) for place in variant] for variant in places]
        )  # [variants, M, 2]: shard and slot
        ((height, width, channels),) = {shard.maps.shape[1:] for shard in shards}
        self.shape = (channels, height, width)
        self.rows = np.flatnonzero((self._places >= 0).all(axis=(0, 2)))
        self.bad_images = bad_images

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
        progress: bool = True,
        engine: EngineName = "torch",
    ) -> FeatureCache:
        """The maps of all images, and with `flips` those of the mirrored images: what is not stored yet is computed.

        Stored maps are found by the content of the image file and verified before they are used. An interrupted build
        keeps what it has finished; the next one goes on from there and gives the same maps, bit for bit.

        `engine` computes the maps. Engines agree closely, but not in the last bits, so each one has a store of its own.
        "auto" takes the store that has at least half of the maps, else the fastest engine (see `open_engine`).
        """
        images = ImageDataset(table, eval_transform(preprocessing), on_bad_image)
        variants = (False, True) if flips else (False,)
        builder = Builder(images, backbone, variants, batch_size=batch_size, workers=workers, progress=progress)

        def store_of(family: Family) -> Store:
            about = describe(backbone, preprocessing, family)
            return Store(folder or default_folder(), fingerprint(backbone, preprocessing, family), about)

        def opened(name: EngineName) -> Engine:
            with evaluating(backbone):
                work = len(table) * len(variants)
                say = _say if progress else None
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
            raise LabelwiseError(f"{table.source}: there is no image that can be decoded")
        return cls([builder.places(store, mirrored) for mirrored in variants], images.bad_images)

    def batch(
        self, rows: Tensor | npt.NDArray[np.int64], flip: Tensor | npt.NDArray[np.bool_] | bool = False
    ) -> Tensor:
        """The maps of these rows of the table, float32 [B, C, H, W]; of the mirrored images where `flip` is true.

        Memory order is channels last, as stored: the tokens [B, H * W, C] of the query heads are a view of it.
        """
        wanted = np.asarray(rows)
        mirrored = np.broadcast_to(np.asarray(flip, bool), wanted.shape).astype(np.int64)
        if mirrored.any() and len(self._places) == 1:
            raise ValueError("this cache has no mirrored features; build it with flips=True")
        places = self._places[mirrored, wanted]  # [B, 2]
        if (places < 0).any():
            raise ValueError(f"row {wanted[(places < 0).any(axis=1)][0]} has no features; choose among `rows`")
        channels, height, width = self.shape
        out = torch.empty(len(wanted), height * width * channels)
        # Row by row: each copy converts as it reads, several times faster than to gather halves and convert them then.
        for target, (shard, slot) in zip(out.unbind(), places.tolist(), strict=True):
            target.copy_(self._maps[shard][slot])
        return out.view(-1, height, width, channels).permute(0, 3, 1, 2)


def _say(text: str) -> None:
    Console(stderr=True).print(f"Features: {text}", markup=False, highlight=False, soft_wrap=True)
