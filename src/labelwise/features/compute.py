"""From pictures to maps: decoding in worker processes, the engine in this one."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from labelwise.core.errors import LabelwiseError
from labelwise.core.files import sha256
from labelwise.data.images import BadImage, BadImageError, load_image
from labelwise.loading.dataset import ImageDataset
from labelwise.runtime.sessions import Engine

_HASHED_AT_ONCE = 1024


class Picture(NamedTuple):
    row: int  # of the table
    digest: bytes  # SHA-256 of the very bytes that were decoded: the file may have changed since it was listed


def file_digests(images: ImageDataset, advance: Callable[[int], None]) -> list[bytes]:
    """SHA-256 of every image file of the table; empty for the files that `images` has noted as unreadable."""

    def digest(row: int) -> bytes | BadImage:
        try:
            return sha256(_content(images.table.images[row])).digest()
        except BadImageError as error:
            return BadImage(row, error.path, error.reason)

    digests = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # reading and hashing happen outside Python's lock
        for first in range(0, len(images), _HASHED_AT_ONCE):
            block = range(first, min(first + _HASHED_AT_ONCE, len(images)))
            for found in pool.map(digest, block):
                if isinstance(found, BadImage):
                    images.note_bad_image(found)
                digests.append(b"" if isinstance(found, BadImage) else found)
            advance(len(block))
    return digests


def compute_maps(
    images: ImageDataset,
    needed: Mapping[int, Collection[bool]],
    engine: Engine,
    *,
    batch_size: int,
    workers: int,
    advance: Callable[[int], None],
) -> Iterator[tuple[list[Picture], bool, Tensor]]:
    """For each row in `needed` the variants asked for (mirrored or not): pictures, mirrored, maps [n, H, W, C]."""
    rows = list(needed)
    workers = workers if len(rows) > batch_size else 0  # processes that would live for one batch do not pay
    loader = DataLoader(_Decoded(images), batch_size, sampler=rows, num_workers=workers, collate_fn=_collate)
    for pictures, inputs, bad_images in loader:
        for bad in bad_images:
            images.note_bad_image(bad)
        for mirrored in (False, True):
            places = [place for place, picture in enumerate(pictures) if mirrored in needed[picture.row]]
            if places:
                chosen = [pictures[place] for place in places]
                maps = _forward(engine, inputs[places].flip(-1) if mirrored else inputs[places], batch_size)
                _require_finite(maps, [images.table.images[picture.row] for picture in chosen])
                yield chosen, mirrored, maps
        advance(len(pictures) + len(bad_images))


@contextmanager
def evaluating(backbone: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each module's own mode again."""
    training = [module for module in backbone.modules() if module.training]
    backbone.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _forward(engine: Engine, inputs: Tensor, batch_size: int) -> Tensor:
    """[n, 3, H, W] -> [n, h, w, C] on the CPU.

    Always runs a whole batch: the last bits of a convolution depend on the size of the batch, and a map must not depend
    on how many others happened to be missing (after an interrupted build, say).
    """
    whole = np.zeros((batch_size, *inputs.shape[1:]), np.float32)
    whole[: len(inputs)] = inputs.numpy()
    maps = torch.from_numpy(engine(whole))
    if maps.dim() != 4:
        raise LabelwiseError(f"the backbone gives {list(maps.shape)}, not maps [B, C, H, W]: they cannot be cached")
    return maps[: len(inputs)].permute(0, 2, 3, 1).contiguous()


def _require_finite(maps: Tensor, paths: list[str]) -> None:
    finite = maps.isfinite().flatten(1).all(dim=1)  # [n]
    if not finite.all():
        path = paths[int(finite.int().argmin())]
        raise LabelwiseError(f"the backbone gives NaN or infinity for image {path!r}; check its weights")


class _Decoded(Dataset[tuple[Picture, Tensor] | BadImage]):
    """Pictures with the backbone's input [3, H, W]."""

    def __init__(self, images: ImageDataset) -> None:
        self.images = images

    def __getitem__(self, row: int) -> tuple[Picture, Tensor] | BadImage:
        path = self.images.table.images[row]
        try:
            data = _content(path)
            image = self.images.transform(load_image(data, min_side=self.images.min_side))
        except BadImageError as error:
            return BadImage(row, path, error.reason)  # a value: torch would make a page of an exception
        return Picture(row, sha256(data).digest()), image


def _collate(items: list[tuple[Picture, Tensor] | BadImage]) -> tuple[list[Picture], Tensor, list[BadImage]]:
    """The good pictures with their inputs [n, 3, H, W], and the bad ones."""
    good = [item for item in items if not isinstance(item, BadImage)]
    inputs = torch.stack([image for _, image in good]) if good else torch.empty(0)
    return [picture for picture, _ in good], inputs, [item for item in items if isinstance(item, BadImage)]


def _content(path: str) -> bytes:
    """A file's bytes, or the error that `load_image` has for it."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        load_image(path)
        raise BadImageError(path, error.strerror or "unreadable") from None
