"""One file of stored maps: written once and never changed, so it is either whole or not there."""

from __future__ import annotations

import os
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from labelwise.errors import LabelwiseError

SUFFIX, UNFINISHED = ".safetensors", ".unfinished"
KEY_BYTES = 33  # SHA-256 of the picture's file, then 1 if the picture was mirrored, else 0


class DamagedShardError(Exception):
    """A file that cannot be used; says why."""


def entry_key(digest: bytes, mirrored: bool) -> bytes:
    return digest + bytes([mirrored])


@dataclass(frozen=True, eq=False)
class Shard:
    path: Path
    fingerprint: str
    keys: list[bytes]  # n
    checksums: list[int]  # n
    maps: Tensor  # [n, H, W, C] float16 or float32, memory-mapped

    def is_intact(self, slot: int) -> bool:
        """Read the map and its key and compare with what was written."""
        return _checksum(self.fingerprint, self.keys[slot], self.maps[slot]) == self.checksums[slot]


def write_shard(folder: Path, fingerprint: str, keys: list[bytes], maps: Tensor) -> None:
    """Maps [n, H, W, C]. The file gets its name only when all of it is on the disk."""
    tensors = {
        "keys": torch.frombuffer(bytearray(b"".join(keys)), dtype=torch.uint8).view(-1, KEY_BYTES),
        "crc32": torch.tensor([_checksum(fingerprint, key, one) for key, one in zip(keys, maps, strict=True)]),
        "maps": maps,
    }
    name = uuid.uuid4().hex  # builders never meet in a name, not even where file locks do not work
    unfinished = folder / (name + UNFINISHED)
    try:
        with unfinished.open("xb") as file:
            file.write(save(tensors, {"fingerprint": fingerprint, "index": _index_checksum(tensors)}))
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, folder / (name + SUFFIX))
        _sync_folder(folder)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise LabelwiseError(
            f"cannot write the feature cache in {str(folder)!r} ({error.strerror}); what was finished before is kept. "
            "Free some space, or set LABELWISE_CACHE to a folder on another disk."
        ) from None


def open_shard(path: Path, fingerprint: str) -> Shard:
    """Map the file into memory. Its size and header are checked here, its entries by `is_intact`."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in ("keys", "crc32", "maps")}
    except SafetensorError as error:
        raise DamagedShardError(" ".join(str(error).split())) from None
    if about.get("fingerprint") != fingerprint:
        raise DamagedShardError("it belongs to another backbone, other weights or another preprocessing")
    if about.get("index") != _index_checksum(tensors):
        raise DamagedShardError("its index is not as it was written")
    keys, checksums, maps = tensors["keys"], tensors["crc32"], tensors["maps"]
    if maps.dim() != 4 or keys.shape != (len(maps), KEY_BYTES) or checksums.shape != (len(maps),):
        raise DamagedShardError("its tensors do not fit together")
    return Shard(path, fingerprint, [bytes(key) for key in keys.numpy()], checksums.tolist(), maps)


def _index_checksum(tensors: dict[str, Tensor]) -> str:
    return str(zlib.crc32(tensors["keys"].numpy().data, zlib.crc32(tensors["crc32"].numpy().data)))


def _checksum(fingerprint: str, key: bytes, one: Tensor) -> int:
    """Over everything that gives the bytes of a map [H, W, C] their meaning, and the bytes."""
    meaning = f"{fingerprint} {one.dtype} {list(one.shape)} ".encode() + key
    return zlib.crc32(one.numpy().data, zlib.crc32(meaning))


def _sync_folder(folder: Path) -> None:
    """Make the new name in the folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
