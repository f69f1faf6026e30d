"""A worker process: holds the models, decodes images, batches them and answers.

The front starts it as `python -m labelwise.server.worker` and talks to it through its standard input and output.
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
from typing import TYPE_CHECKING, BinaryIO, Generic, NamedTuple, TypeVar

from labelwise.core.errors import LabelwiseError
from labelwise.server import protocol as wire
from labelwise.server.protocol import Job, Reply
from labelwise.server.settings import ServeSettings

if TYPE_CHECKING:
    # Not at run time: NumPy and PyTorch read OMP_NUM_THREADS when they are imported, and `main` sets it first.
    from labelwise.core.arrays import Doubles, Floats
    from labelwise.runtime.tagger import Tagger
    from labelwise.server.models import ModelStore

Item = TypeVar("Item")
_LOOK = 0.5  # seconds between checks for images that take too long


class _Ready(NamedTuple, Generic[Item]):
    since: float
    item: Item


class Batcher(Generic[Item]):
    """Dynamic batches of items of the same `group`. Many threads `announce`, prepare and `put` items, one thread takes.

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
        self._groups: dict[Hashable, list[_Ready[Item]]] = {}  # ordered by their oldest items
        self._on_the_way = 0

    def announce(self) -> None:
        """An item has arrived and is being prepared."""
        with self._changed:
            self._on_the_way += 1

    def drop(self) -> None:
        """An announced item failed."""
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

        An item never waits if no other one is announced, so a single client is answered at once.
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
            if rest:  # at the end: no model starves another one
                self._groups[group] = rest
            return [ready.item for ready in batch]


class _Prepared(NamedTuple):
    job: Job
    tagger: Tagger
    image: Floats  # [3, size, size]
    known: Floats | None  # [N], of `Tagger.known_labels`


class _ReplyStream:
    """Replies to the front. Thread-safe."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._lock = stream, Lock()

    def send(self, *replies: Reply) -> None:
        with self._lock:
            self._stream.write(b"".join(map(wire.pack_reply, replies)))
            self._stream.flush()


class Worker:
    def __init__(self, settings: ServeSettings, store: ModelStore, replies: _ReplyStream, threads: int) -> None:
        self._settings, self._store, self._replies = settings, store, replies
        self._batcher = Batcher[_Prepared](batch_size=settings.batch_size, max_wait=settings.max_wait / 1000)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")  # Pillow releases Python's lock
        self._decoding: dict[int, float] = {}  # jobs, since when

    def run(self, jobs: BinaryIO) -> None:
        """Answer until the front closes the pipe. Threads decode while this one runs the models."""
        Thread(target=self._read, args=(jobs,), daemon=True).start()
        Thread(target=self._watch, daemon=True).start()
        while True:
            self._answer(self._batcher.take())

    def _read(self, jobs: BinaryIO) -> None:
        while (job := wire.read_job(jobs)) is not None:
            self._batcher.announce()
            self._pool.submit(self._prepare, job)
        os._exit(0)  # the front has all replies or is gone: nobody waits for the rest

    def _watch(self) -> None:
        """Exit if an image takes too long to decode: a thread cannot be stopped, and soon all would be taken.

        Images that take too long are refused; the front sends the others to the next worker.
        """
        limit = self._settings.decode_seconds
        text = f"the image takes more than {limit:g} s to decode; send another file"
        while True:
            time.sleep(_LOOK)
            started = time.monotonic() - limit
            late = [number for number, since in self._decoding.copy().items() if since < started]
            if late:
                leaving = wire.event(leaving=f"an image took more than {limit:g} s to decode; its worker is replaced")
                self._replies.send(*(Reply(number, 422, text.encode()) for number in late), leaving)
                os._exit(1)

    def _prepare(self, job: Job) -> None:
        from labelwise.data.images import BadImageError, TooManyPixelsError, load_image

        try:
            tagger = self._store.get(job.options["model"], job.options["labels"])
            known = tagger.known_labels(job.options["known"])
            size = tagger.transform.min_side
            self._decoding[job.number] = time.monotonic()
            try:
                image = tagger.transform(load_image(job.body, min_side=size, max_pixels=self._settings.max_pixels))
            finally:
                del self._decoding[job.number]
        except Exception as error:
            self._batcher.drop()
            if isinstance(error, TooManyPixelsError):
                self._refuse(job, 413, f"the image is too large ({error.reason}); send a smaller one")
            elif isinstance(error, BadImageError):
                self._refuse(job, 422, f"the image cannot be decoded ({error.reason}); send another file")
            elif isinstance(error, LabelwiseError):
                self._refuse(job, 422, str(error))
            elif isinstance(error, MemoryError):
                self._refuse(job, 503, "the server is out of memory; retry later, or send a smaller image")
            else:  # from a decoder or a text encoder
                self._refuse(job, 422, f"the image cannot be used ({type(error).__name__}: {error})")
        else:
            prepared = _Prepared(job, tagger, image, known)
            self._batcher.put(job.number if job.options["explain"] else tagger, prepared)

    def _answer(self, batch: list[_Prepared]) -> None:
        from labelwise.server.models import explained

        start = time.perf_counter()
        first = batch[0]
        try:
            if first.job.options["explain"]:
                text = explained(first.tagger, first.image, first.known, first.job.options)
                replies = [Reply(first.job.number, 200, text)]
            else:
                replies = _predictions(batch)
        except LabelwiseError as error:
            replies = [Reply(prepared.job.number, 422, str(error).encode()) for prepared in batch]
        except Exception as error:  # out of memory, or a damaged network: this batch fails, the server goes on
            text = f"the model failed ({type(error).__name__}: {error})".encode()
            replies = [Reply(prepared.job.number, 503, text) for prepared in batch]
        self._replies.send(*replies, wire.event(batch=len(batch), seconds=time.perf_counter() - start))

    def _refuse(self, job: Job, status: int, text: str) -> None:
        self._replies.send(Reply(job.number, status, " ".join(text.split()).encode()))


def _predictions(batch: list[_Prepared]) -> list[Reply]:
    import numpy as np

    from labelwise.server.models import predicted

    tagger = batch[0].tagger
    known = None
    if any(prepared.known is not None for prepared in batch):
        nothing = np.full(len(tagger.labels), -1, np.float32)
        known = np.stack([nothing if prepared.known is None else prepared.known for prepared in batch])
    scores = tagger.scores(np.stack([prepared.image for prepared in batch]), known)  # [B, N]

    def reply(job: Job, values: Doubles) -> Reply:
        try:
            return Reply(job.number, 200, predicted(tagger, values, job.options))
        except LabelwiseError as error:
            return Reply(job.number, 422, str(error).encode())
        except Exception as error:  # one image's options must not fail the rest of its batch
            return Reply(job.number, 503, f"the answer failed ({type(error).__name__}: {error})".encode())

    return [reply(prepared.job, values) for prepared, values in zip(batch, scores, strict=True)]


def main() -> None:
    # Ctrl-C reaches the whole process group. Only the front reacts; workers end when it closes the pipe.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    jobs = sys.stdin.buffer
    replies = _ReplyStream(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # what libraries print must not get between the replies
    first = wire.read_job(jobs)
    if first is None:
        return
    settings, threads = ServeSettings.model_validate(first.options["settings"]), int(first.options["threads"])
    os.environ["OMP_NUM_THREADS"] = str(threads)  # before PyTorch and the like are imported
    with suppress(BrokenPipeError):
        store = _open(settings, replies)
        if store is not None:
            Worker(settings, store, replies, threads).run(jobs)


def _open(settings: ServeSettings, replies: _ReplyStream) -> ModelStore | None:
    """Load the models; None if that fails, after telling the front why in one line."""
    from labelwise.server.models import ModelStore

    try:
        store = ModelStore(settings, lambda text: replies.send(wire.event(say=text)))
    except LabelwiseError as error:
        replies.send(wire.event(error=str(error)))
    except Exception as error:  # whatever a hostile or broken folder causes: one line
        reason = " ".join(str(error).split())[:300]
        replies.send(wire.event(error=f"the model cannot be loaded ({type(error).__name__}: {reason})"))
    else:
        replies.send(wire.event(ready=store.describe()))
        return store
    return None


if __name__ == "__main__":
    main()
