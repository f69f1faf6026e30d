"""All maps of one backbone with one preprocessing: a folder of shards."""

from __future__ import annotations

import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from labelwise.errors import LabelwiseError
from labelwise.features.shard import SUFFIX, UNFINISHED, DamagedShardError, Shard, open_shard
from labelwise.file_lock import lock

_log = logging.getLogger(__name__)


class Store:
    """`places` tells where each stored map is. Only maps that `check` has let pass may be used."""

    def __init__(self, root: Path, fingerprint: str, about: dict[str, Any]) -> None:
        self.folder, self.fingerprint, self.about = root / fingerprint, fingerprint, about
        self.places: dict[bytes, tuple[Shard, int]] = {}  # key -> its shard and its slot there
        self._opened: set[Path] = set()
        self._damaged: set[Path] = set()
        self._checked: set[bytes] = set()

    def refresh(self) -> None:
        """Take in the shards that have come since."""
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
                self.places.setdefault(key, (shard, slot))

    def check(self, keys: Iterable[bytes], advance: Callable[[int], None]) -> None:
        """Compare the stored maps of `keys` with their checksums. A shard with a wrong one is not used any more."""
        slots: dict[Shard, list[int]] = defaultdict(list)
        for key in keys:
            if key in self.places and key not in self._checked:
                shard, slot = self.places[key]
                slots[shard].append(slot)

        def wrong(shard: Shard) -> int:
            return sum(not shard.is_intact(slot) for slot in slots[shard])

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # checksums are computed outside Python's lock
            for shard, errors in zip(slots, pool.map(wrong, slots), strict=True):
                advance(len(slots[shard]))
                self._checked.update(shard.keys[slot] for slot in slots[shard])
                if errors:
                    self._report_damage(shard.path, f"{errors} of its maps are not as they were written")
                    self._forget(shard)

    def remove_damaged(self) -> None:
        """Only inside `filling`. Processes that still read a removed file keep it until they end."""
        while self._damaged:
            self._damaged.pop().unlink(missing_ok=True)

    @contextmanager
    def filling(self) -> Iterator[None]:
        """One process at a time fills a store: others wait here, and then find the work done.

        The lock belongs to the process and ends with it, however it ends. Where the file system has no locks, two
        processes may compute the same maps twice; what they write is valid all the same.
        """
        with self._lock_file() as file:
            try:
                locked = lock(file, wait=False)
            except BlockingIOError:
                _log.warning("feature cache: another process is filling %s; waiting for it", self.folder)
                locked = lock(file, wait=True)
            if locked:
                for path in self.folder.glob("*" + UNFINISHED):  # of a process that was killed
                    path.unlink(missing_ok=True)
            yield

    def _lock_file(self) -> IO[str]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "about.json").write_text(json.dumps(self.about, indent=1) + "\n", encoding="utf-8")
            return (self.folder / "lock").open("a")
        except OSError as error:
            raise LabelwiseError(
                f"cannot write the feature cache in {str(self.folder)!r} ({error.strerror}); "
                "set LABELWISE_CACHE to a folder where you can"
            ) from None

    def _report_damage(self, path: Path, reason: str) -> None:
        _log.warning(
            "feature cache: %s is damaged (%s) and not used; maps that are needed are computed again", path, reason
        )
        self._damaged.add(path)

    def _forget(self, shard: Shard) -> None:
        for key in shard.keys:
            if key in self.places and self.places[key][0] is shard:
                del self.places[key]
                self._checked.discard(key)
