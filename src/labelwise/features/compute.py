"""From images to feature maps: worker processes decode, the engine runs in this one."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.core.errors import LabelwiseError
from labelwise.core.files import sha256
from labelwise.data.images import BadImage, BadImageError, read_image
from labelwise.loading.dataset import ImageDataset, ImageLoader
from labelwise.runtime.sessions import Engine

_HASHED_AT_ONCE = 1024


def file_digests(images: ImageDataset, advance: Callable[[int], None]) -> list[bytes]:
    """SHA-256 of every image file of the table; empty for the files that `images` has noted as unreadable."""

    def digest(row: int) -> bytes | BadImage:
        try:
            return sha256(read_image(images.table.images[row]).data).digest()
        except BadImageError as error:
            return BadImage(row, error.path, error.reason)

    digests = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # reading and hashing release Python's lock
        for first in range(0, len(images), _HASHED_AT_ONCE):
            block = range(first, min(first + _HASHED_AT_ONCE, len(images)))
            for found in pool.map(digest, block):
                if isinstance(found, BadImage):
                    images.note_bad_image(found)
                digests.append(b"" if isinstance(found, BadImage) else found)
            advance(len(block))
    return digests


def file_digest(row: int, content: bytes) -> Tensor:
    """SHA-256 of an image file as a tensor, uint8 [32]."""
    return torch.frombuffer(bytearray(sha256(content).digest()), dtype=torch.uint8)


def compute_maps(
    images: ImageDataset,
    needed: Mapping[int, Collection[bool]],
    engine: Engine,
    *,
    batch_size: int,
    workers: int,
    advance: Callable[[int], None],
) -> Iterator[tuple[list[int], list[bytes], bool, Tensor]]:
    """The variants of each row that `needed` asks for: rows [n], digests of their files, mirrored, maps [n, H, W, C].

    `images` has `file_digest` as its target: what is stored belongs to the very bytes that were decoded.
    """
    rows = list(needed)
    workers = workers if len(rows) > batch_size else 0  # starting processes for one batch does not pay
    for batch in ImageLoader(images, batch_size=batch_size, sampler=rows, num_workers=workers):
        found, digests = batch.rows.tolist(), [bytes(digest) for digest in batch.targets.numpy()]
        for mirrored in (False, True):
            wanted = [number for number, row in enumerate(found) if mirrored in needed[row]]
            if wanted:
                chosen = [found[number] for number in wanted]
                inputs = batch.images[wanted]
                maps = _forward(engine, inputs.flip(-1) if mirrored else inputs, batch_size)
                _require_finite(maps, [images.table.images[row] for row in chosen])
                yield chosen, [digests[number] for number in wanted], mirrored, maps
        advance(len(found))


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
