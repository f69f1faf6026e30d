"""The store of feature maps: one folder of shards for each backbone with its weights, preprocessing and engine."""

from __future__ import annotations

import ctypes
import json
import logging
import mmap
import time
import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from labelwise.core.config import Config
from labelwise.core.environment import thread_count
from labelwise.core.errors import LabelwiseError, one_line
from labelwise.core.files import atomic_write, lock, sha256
from labelwise.data.preprocessing import Preprocessing
from labelwise.engines.choose import network_parts
from labelwise.runtime.sessions import Family

SUFFIX = ".safetensors"
LEFTOVERS = (".*.part", "*.unfinished")  # the latter from before `atomic_write`
LEFTOVER_SECONDS = 3600.0
KEY_BYTES = 33  # SHA-256 of the image file, then 1 if the image was mirrored, else 0
# A shard is closed at this size or age: a killed process loses at most that much work.
SHARD_BYTES = 64 * 2**20
SHARD_SECONDS = 30.0
# Raise it whenever the same image would give another map or another file: how images are decoded and resized, the
# precision and the layout of the store.
FORMAT = 1

_log = logging.getLogger(__name__)


class Store:
    """The stored maps. `index` tells where each one is; use only those that passed `check`."""

    def __init__(self, root: Path, fingerprint: str, about: dict[str, Any]) -> None:
        self.folder, self.fingerprint, self.about = root / fingerprint, fingerprint, about
        self.index: dict[bytes, Location] = {}  # by key
        self._opened: set[Path] = set()
        self._damaged: set[Path] = set()
        self._checked: set[bytes] = set()

    def refresh(self) -> None:
        """Open the shards that were added since."""
        for path in sorted(self.folder.glob("*" + SUFFIX)):
            if path in self._opened:
                continue
            try:
                shard = open_shard(path, self.fingerprint)
            except FileNotFoundError:  # another process has just removed it
                continue
            except OSError as error:
                raise LabelwiseError(f"cannot read the feature cache {str(path)!r} ({error.strerror})") from None
            except DamagedShardError as error:
                self._report_damage(path, str(error))
                continue
            finally:
                self._opened.add(path)
            for slot, key in enumerate(shard.keys):
                self.index.setdefault(key, (shard, slot))

    def check(self, keys: Iterable[bytes], advance: Callable[[int], None]) -> None:
        """Compare the stored maps of `keys` with their checksums. A shard with a wrong one is no longer used."""
        slots: dict[Shard, list[int]] = defaultdict(list)
        for key in keys:
            if key in self.index and key not in self._checked:
                shard, slot = self.index[key]
                slots[shard].append(slot)

        def wrong(shard: Shard) -> int:
            return sum(not shard.is_intact(slot) for slot in slots[shard])

        with ThreadPoolExecutor(thread_count()) as pool:  # checksums are computed outside Python's lock
            for shard, errors in zip(slots, pool.map(wrong, slots), strict=True):
                advance(len(slots[shard]))
                self._checked.update(shard.keys[slot] for slot in slots[shard])
                if errors:
                    self._report_damage(shard.path, f"{errors} of its maps were changed")
                    lost = [key for key in shard.keys if key in self.index and self.index[key][0] is shard]
                    for key in lost:
                        del self.index[key]
                    self._checked.difference_update(lost)

    def remove_damaged(self) -> None:
        """Processes that still read a removed file keep it until they end."""
        while self._damaged:
            self._damaged.pop().unlink(missing_ok=True)

    @contextmanager
    def filling(self, images: Iterable[bytes]) -> Iterator[None]:
        """Around computing the maps of `images`, given by their digests.

        Processes with the same images take turns, and the second one finds the work done. Others do not wait: each
        writes shards of its own, and a map that is stored twice is valid twice. The lock ends with the process, however
        that ends.
        """
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            atomic_write(self.folder / "about.json", json.dumps(self.about, indent=1) + "\n")
            file = (self.folder / "lock").open("a")
        byte = int.from_bytes(sha256(*sorted(set(images))).digest()[:7])
        with file:
            try:
                lock(file, wait=False, byte=byte)
            except BlockingIOError:
                _log.warning("feature cache: another process computes the same features; waiting for it")
                lock(file, wait=True, byte=byte)
            yield

    def _remove_leftovers(self) -> None:
        """Drafts of processes that were killed; younger ones may be in work."""
        for path in chain.from_iterable(self.folder.glob(pattern) for pattern in LEFTOVERS):
            with suppress(FileNotFoundError):  # another process has just removed it, or has finished it
                if time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                    path.unlink()

    def _report_damage(self, path: Path, reason: str) -> None:
        _log.warning("feature cache: %s is damaged (%s) and not used; its maps are computed again", path, reason)
        self._damaged.add(path)


class MapWriter:
    """Collects maps and writes them to a store, in shards.

    Maps are stored in float16, which rounds by at most 1 part in 2,048. A map that exceeds its range (65,504) is stored
    in float32. This is decided for each map alone, so it does not depend on the maps around it.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._empty()

    def _empty(self) -> None:
        self._waiting: dict[torch.dtype, list[tuple[bytes, Tensor]]] = defaultdict(list)
        self._bytes, self._since = 0, time.monotonic()

    def add(self, keys: list[bytes], maps: Tensor) -> None:
        """Finite maps [n, H, W, C], in any memory order."""
        half = maps.half()
        fits = half.sum(dim=(1, 2, 3), dtype=torch.float32).isfinite()  # [n]
        for number, key in enumerate(keys):
            stored = half[number] if fits[number] else maps[number].float()
            self._waiting[stored.dtype].append((key, stored))
            self._bytes += stored.nbytes
        if self._bytes >= SHARD_BYTES or time.monotonic() - self._since >= SHARD_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what was collected. After a failure nothing is left to write: a full disk is reported once."""
        waiting = list(self._waiting.values())
        self._empty()
        for entries in waiting:
            keys, maps = zip(*entries, strict=True)
            write_shard(self.store.folder, self.store.fingerprint, list(keys), torch.stack(maps))


# ---- what a store belongs to


def describe_store(backbone: nn.Module, preprocessing: Preprocessing, family: Family = "torch") -> dict[str, Any]:
    """What a store holds, for people: kept in about.json, and part of the fingerprint."""
    config = getattr(backbone, "config", None)
    # Options that were added later are left out at their defaults, so that older stores are found.
    neutral = {"crop_ratio"} if preprocessing.crop_ratio == 1 else set()
    own = {"drop_path"} if getattr(config, "class_token", False) else {"drop_path", "class_token"}
    return {
        "format": FORMAT,
        "backbone": config.model_dump(mode="json", exclude=own)
        if isinstance(config, Config)
        else type(backbone).__qualname__,
        "preprocessing": preprocessing.model_dump(mode="json", exclude=neutral),
        # Engines agree to TOLERANCE, not to the last bit: each has its own store.
        **({} if family == "torch" else {"engine": family}),
    }


def fingerprint(backbone: nn.Module, preprocessing: Preprocessing, family: Family = "torch") -> str:
    """The same for the same backbone with the same weights, preprocessing and engine, in every process; else another.

    >>> layer = nn.Conv2d(3, 4, 1)
    >>> before = fingerprint(layer, Preprocessing())
    >>> _ = layer.weight.data[0].mul_(1.001)
    >>> len(before), before == fingerprint(layer, Preprocessing())
    (32, False)
    """
    about = json.dumps(describe_store(backbone, preprocessing, family), sort_keys=True)
    return sha256(about, *network_parts(backbone)).hexdigest()[:32]


# ---- shards


def entry_key(digest: bytes, mirrored: bool) -> bytes:
    return digest + bytes([mirrored])


class DamagedShardError(Exception):
    """A shard file that cannot be used, with the reason."""


@dataclass(frozen=True, eq=False)
class Shard:
    path: Path
    fingerprint: str
    keys: list[bytes]  # n
    checksums: list[int]  # n
    maps: Tensor  # [n, H, W, C] float16 or float32, memory-mapped

    def is_intact(self, slot: int) -> bool:
        """Read the map and compare it with its checksum."""
        return _checksum(self.fingerprint, self.keys[slot], self.maps[slot]) == self.checksums[slot]


Location = tuple[Shard, int]  # a shard and the slot of a map in it


def write_shard(folder: Path, fingerprint: str, keys: list[bytes], maps: Tensor) -> None:
    """Write maps [n, H, W, C] as a new shard."""
    tensors = {
        "keys": torch.frombuffer(bytearray(b"".join(keys)), dtype=torch.uint8).view(-1, KEY_BYTES),
        "crc32": torch.tensor([_checksum(fingerprint, key, one) for key, one in zip(keys, maps, strict=True)]),
        "maps": maps,
    }
    name = uuid.uuid4().hex  # never the same twice, even on file systems without locks
    content = save(tensors, {"fingerprint": fingerprint, "index": _index_checksum(tensors)})
    with _writing(folder):
        atomic_write(folder / (name + SUFFIX), content)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LabelwiseError(
            f"cannot write the feature cache in {str(folder)!r} ({error.strerror}); what was finished before is kept. "
            "Free some space, or set LABELWISE_CACHE to a folder where you can write."
        ) from None


def open_shard(path: Path, fingerprint: str) -> Shard:
    """Map a shard into memory. Its size and header are checked here, its maps by `is_intact`."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in ("keys", "crc32", "maps")}
    except SafetensorError as error:
        raise DamagedShardError(one_line(error)) from None
    if about.get("fingerprint") != fingerprint:
        raise DamagedShardError("it belongs to another backbone, other weights or another preprocessing")
    if about.get("index") != _index_checksum(tensors):
        raise DamagedShardError("its index was changed")
    keys, checksums, maps = tensors["keys"], tensors["crc32"], tensors["maps"]
    if maps.dim() != 4 or keys.shape != (len(maps), KEY_BYTES) or checksums.shape != (len(maps),):
        raise DamagedShardError("its tensors do not match")
    return Shard(path, fingerprint, [bytes(key) for key in keys.numpy()], checksums.tolist(), maps)


def advise(how: Literal["random", "willneed"], maps: Tensor) -> None:
    """Tell the system how memory-mapped maps will be read. Left to itself, Linux reads up to megabytes around each page
    that it needs, dozens of times as much as one map. Systems without `madvise` are not told."""
    if advice := getattr(mmap, f"MADV_{how.upper()}", None):
        first = maps.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        size = maps.data_ptr() + maps.nbytes - first
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), advice)


def _index_checksum(tensors: dict[str, Tensor]) -> str:
    return str(zlib.crc32(tensors["keys"].numpy().data, zlib.crc32(tensors["crc32"].numpy().data)))


def _checksum(fingerprint: str, key: bytes, one: Tensor) -> int:
    """Of the bytes of a map [H, W, C] and of everything that gives them their meaning."""
    meaning = f"{fingerprint} {one.dtype} {list(one.shape)} ".encode() + key
    return zlib.crc32(one.numpy().data, zlib.crc32(meaning))
