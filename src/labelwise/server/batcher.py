"""Pictures of many requests become batches: one takes what has arrived and waits a moment for what is on its way."""

from __future__ import annotations

import time
from collections.abc import Hashable
from threading import Condition
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class _Ready(NamedTuple, Generic[Item]):
    since: float
    item: Item


class Batcher(Generic[Item]):
    """Items of one `group` can share a batch. Threads announce an item, prepare it and put it in; one thread takes.

    >>> batcher = Batcher[str](batch_size=2, max_wait=0.0)
    >>> for letter in "abc":
    ...     batcher.announce()
    ...     batcher.put("letters", letter)
    >>> batcher.take(), batcher.take()
    (['a', 'b'], ['c'])
    """

    def __init__(self, *, batch_size: int, max_wait: float) -> None:
        self._batch_size, self._max_wait = batch_size, max_wait
        self._changed = Condition()
        self._groups: dict[Hashable, list[_Ready[Item]]] = {}  # in the order in which their oldest items came
        self._on_the_way = 0

    def announce(self) -> None:
        """An item has arrived and is being prepared."""
        with self._changed:
            self._on_the_way += 1

    def drop(self) -> None:
        """An announced item that will not come."""
        with self._changed:
            self._on_the_way -= 1
            self._changed.notify()

    def put(self, group: Hashable, item: Item) -> None:
        """An announced item is ready."""
        with self._changed:
            self._on_the_way -= 1
            self._groups.setdefault(group, []).append(_Ready(time.monotonic(), item))
            self._changed.notify()

    def take(self) -> list[Item]:
        """A batch of the group that has waited longest.

        An item never waits when nothing else is on its way: a single client's answers come as fast as they can.
        """
        with self._changed:
            while not self._groups:
                self._changed.wait()
            group, waiting = next(iter(self._groups.items()))
            end = waiting[0].since + self._max_wait
            while len(waiting) < self._batch_size and self._on_the_way and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            batch, rest = waiting[: self._batch_size], waiting[self._batch_size :]
            del self._groups[group]
            if rest:  # behind the groups that came in the meantime: no model starves another one
                self._groups[group] = rest
            return [ready.item for ready in batch]
