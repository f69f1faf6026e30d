"""A worker process: holds the models, decodes pictures, makes batches of them, and answers.

Started by the front as `python -m labelwise.server.worker`; its standard input and output are the line to the front.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, NamedTuple, TypeVar

from labelwise.core.arrays import Doubles, Floats
from labelwise.core.errors import LabelwiseError
from labelwise.server import protocol as wire
from labelwise.server.protocol import Job, Reply
from labelwise.server.settings import ServeSettings

if TYPE_CHECKING:
    from labelwise.server.models import Library, Served

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


class _Prepared(NamedTuple):
    job: Job
    served: Served
    image: Floats  # [3, size, size]


class _Line:
    """Answers to the front; several threads have some."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._lock = stream, Lock()

    def send(self, *replies: Reply) -> None:
        with self._lock:
            self._stream.write(b"".join(map(wire.pack_reply, replies)))
            self._stream.flush()


class Worker:
    def __init__(self, settings: ServeSettings, library: Library, line: _Line, threads: int) -> None:
        self._settings, self._library, self._line = settings, library, line
        self._batcher = Batcher[_Prepared](batch_size=settings.batch_size, max_wait=settings.max_wait / 1000)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")  # Pillow releases Python's lock

    def run(self, jobs: BinaryIO) -> None:
        """Answer until the front closes the line: threads decode while this one runs the models."""
        Thread(target=self._read, args=(jobs,), daemon=True).start()
        while True:
            self._answer(self._batcher.take())

    def _read(self, jobs: BinaryIO) -> None:
        while (job := wire.read_job(jobs)) is not None:
            self._batcher.announce()
            self._pool.submit(self._prepare, job)
        os._exit(0)  # the front has its answers, or is gone: nobody is left to hear of anything else

    def _prepare(self, job: Job) -> None:
        from labelwise.data.images import BadImageError, TooManyPixelsError, load_image

        try:
            served = self._library.served(job.options["model"], job.options["labels"])
            size = served.transform.min_side
            image = served.transform(load_image(job.body, min_side=size, max_pixels=self._settings.max_pixels))
        except Exception as error:
            self._batcher.drop()
            if isinstance(error, TooManyPixelsError):
                self._refuse(job, 413, f"the picture has {error.reason}; send a smaller one")
            elif isinstance(error, BadImageError):
                self._refuse(job, 422, f"the picture cannot be decoded ({error.reason}); send another file")
            elif isinstance(error, LabelwiseError):
                self._refuse(job, 422, str(error))
            elif isinstance(error, MemoryError):
                self._refuse(job, 503, "the server is short of memory; try again later, or send a smaller picture")
            else:  # a decoder or an encoder of words failed in a way of its own
                self._refuse(job, 422, f"the picture cannot be used ({type(error).__name__}: {error})")
        else:
            prepared = _Prepared(job, served, image)
            self._batcher.put(job.number if job.options["explain"] else served, prepared)

    def _answer(self, batch: list[_Prepared]) -> None:
        from labelwise.server.models import explained

        start = time.perf_counter()
        first = batch[0]
        try:
            if first.job.options["explain"]:
                text = explained(first.job.options["model"], first.served, first.image, first.job.options)
                replies = [Reply(first.job.number, 200, text)]
            else:
                replies = _predictions(batch)
        except LabelwiseError as error:
            replies = [Reply(prepared.job.number, 422, str(error).encode()) for prepared in batch]
        except Exception as error:  # out of memory, or a damaged network: these pictures failed, the server goes on
            text = f"the model failed ({type(error).__name__}: {error})".encode()
            replies = [Reply(prepared.job.number, 503, text) for prepared in batch]
        self._line.send(*replies, wire.event(batch=len(batch), seconds=time.perf_counter() - start))

    def _refuse(self, job: Job, status: int, text: str) -> None:
        self._line.send(Reply(job.number, status, " ".join(text.split()).encode()))


def _predictions(batch: list[_Prepared]) -> list[Reply]:
    import numpy as np

    from labelwise.server.models import predicted

    tagger = batch[0].served.tagger
    scores = tagger.scores(np.stack([prepared.image for prepared in batch]))  # [B, N]

    def reply(job: Job, values: Doubles) -> Reply:
        try:
            return Reply(job.number, 200, predicted(tagger, values, job.options))
        except LabelwiseError as error:
            return Reply(job.number, 422, str(error).encode())
        except Exception as error:  # one picture's options must not cost the others of its batch their answers
            return Reply(job.number, 503, f"the answer failed ({type(error).__name__}: {error})".encode())

    return [reply(prepared.job, values) for prepared, values in zip(batch, scores, strict=True)]


def main() -> None:
    # Whoever stops a group of processes stops the front alone: workers end when it has no more work for them.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    jobs = sys.stdin.buffer
    line = _Line(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # what a library prints must not get between the answers
    first = wire.read_job(jobs)
    if first is None:
        return
    threads = int(first.options["threads"])
    os.environ["OMP_NUM_THREADS"] = str(threads)  # before PyTorch and its like are imported
    with suppress(BrokenPipeError):
        library = _open(first.options, line)
        if library is not None:
            Worker(ServeSettings.model_validate(first.options["settings"]), library, line, threads).run(jobs)


def _open(options: dict[str, Any], line: _Line) -> Library | None:
    """The models; or None, after the front has been told in one line why they cannot be had."""
    from labelwise.server.models import Library

    try:
        library = Library(
            ServeSettings.model_validate(options["settings"]), lambda text: line.send(wire.event(say=text))
        )
    except LabelwiseError as error:
        line.send(wire.event(error=str(error)))
    except Exception as error:  # whatever a hostile or broken folder may cause: one line all the same
        reason = " ".join(str(error).split())[:300]
        line.send(wire.event(error=f"the model cannot be loaded ({type(error).__name__}: {reason})"))
    else:
        line.send(wire.event(ready=library.describe()))
        return library
    return None


if __name__ == "__main__":
    main()
