"""The feature maps of a table's images, computed once and ready to train on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.core.arrays import Ints, Mask
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import cache_folder
from labelwise.core.progress import ShowProgress, report
from labelwise.data.images import BadImage, OnBadImage
from labelwise.data.preprocessing import Preprocessing
from labelwise.data.table import LabelTable
from labelwise.engines.choose import open_engine
from labelwise.features.compute import MapBuilder, evaluating, file_digest
from labelwise.features.store import Location, Store, describe_store, fingerprint
from labelwise.loading.augment import eval_transform
from labelwise.loading.dataset import ImageDataset
from labelwise.runtime.sessions import FAMILIES, Engine, EngineName, Family


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
