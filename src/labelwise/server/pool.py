"""The pool of workers, seen from the front process: which worker gets which image, and what happens if one dies.

Every accepted image stays in the front's memory until it is answered, so a dying worker loses none.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from labelwise.core.errors import LabelwiseError
from labelwise.server import protocol as wire
from labelwise.server.middleware import Metrics
from labelwise.server.protocol import Reply, WorkerProcess
from labelwise.server.settings import ServeSettings

_DEATHS = 2  # an image that was in work when this many workers died is refused
_LONGEST_PAUSE = 30.0  # seconds between attempts to start a worker that keeps dying
_LOOK = 1.0  # seconds between checks for hanging workers


@dataclass
class QueuedImage:
    """An accepted image, until it is answered."""

    number: int
    options: bytes
    body: bytes
    answer: asyncio.Future[Reply]
    deaths: int = 0  # of workers that had it in work


@dataclass
class _Slot:
    """The place of one worker; a dead worker is replaced in it."""

    worker: WorkerProcess | None = None  # None until one is ready
    images: dict[int, QueuedImage] = field(default_factory=dict)  # in work
    heard: float = 0.0  # when it last answered or was given work

    @property
    def has_suspect(self) -> bool:
        return any(image.deaths for image in self.images.values())


class Pool:
    """Hands images to the workers and keeps the workers alive."""

    def __init__(self, settings: ServeSettings, threads: int, metrics: Metrics, say: Callable[[str], None]) -> None:
        self._settings, self._metrics, self._say = settings, metrics, say
        self._threads = max(1, threads // settings.workers)
        # One batch in the model, the next one being decoded, and a few more, so that neither waits for the front.
        self._window = 2 * settings.batch_size + self._threads
        self._slots = [_Slot() for _ in range(settings.workers)]
        self._waiting: deque[QueuedImage] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._numbers = 0
        self.unanswered = 0
        self.idle = asyncio.Event()  # nothing is unanswered
        self.idle.set()
        self.models: list[dict[str, Any]] = []
        metrics.watch(queue=lambda: self.unanswered, workers=lambda: self.ready)

    @property
    def ready(self) -> int:
        return sum(slot.worker is not None for slot in self._slots)

    async def start(self) -> None:
        """Start all workers. A model that cannot be loaded is a LabelwiseError."""
        # One by one: the first may convert the model and measure engines, the others reuse its result.
        for slot in self._slots:
            await self._load(slot)
            self._tasks.append(asyncio.create_task(self._keep(slot)))
        self._tasks.append(asyncio.create_task(self._watch()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        workers = [slot.worker for slot in self._slots if slot.worker is not None]
        await asyncio.gather(*(worker.end() for worker in workers))

    def has_room(self, images: int) -> bool:
        return self.unanswered + images <= self._settings.queue

    def submit(self, options: dict[str, Any], body: bytes) -> asyncio.Future[Reply]:
        """Accept an image; the caller has checked `has_room`."""
        loop = asyncio.get_running_loop()
        self._numbers += 1
        answer: asyncio.Future[Reply] = loop.create_future()
        image = QueuedImage(self._numbers, json.dumps(options).encode(), body, answer)
        late = loop.call_later(self._settings.timeout, self._refuse, image, "took too long; try again later")
        answer.add_done_callback(lambda _: self._done(late))
        self.unanswered += 1
        self.idle.clear()
        self._waiting.append(image)
        self._hand_out()
        return answer

    def _done(self, late: asyncio.TimerHandle) -> None:
        late.cancel()
        self.unanswered -= 1
        if not self.unanswered:
            self.idle.set()

    def _refuse(self, image: QueuedImage, reason: str) -> None:
        if not image.answer.done():
            image.answer.set_result(Reply(image.number, 503, f"the image {reason}".encode()))

    def _hand_out(self) -> None:
        """Give waiting images to the workers that have least to do."""
        while self._waiting:
            image = self._waiting[0]
            if image.answer.done():  # too late for it
                self._waiting.popleft()
                continue
            open_slots = [slot for slot in self._slots if self._may_take(slot, image)]
            if not open_slots:
                return
            slot = min(open_slots, key=lambda slot: len(slot.images))
            assert slot.worker is not None
            self._waiting.popleft()
            if not slot.images:
                slot.heard = asyncio.get_running_loop().time()
            slot.images[image.number] = image
            slot.worker.send(image.number, image.options, image.body)

    def _may_take(self, slot: _Slot, image: QueuedImage) -> bool:
        """An image that was in work when a worker died is retried alone, so that it can take no other one with it."""
        if slot.worker is None or slot.has_suspect:
            return False
        return len(slot.images) < (1 if image.deaths else self._window)

    async def _load(self, slot: _Slot) -> None:
        """Start a worker in the slot and wait until it is ready."""
        worker = await WorkerProcess.start(self._settings, self._threads)
        try:
            while (news := await worker.news()) is not None:
                if "say" in news:
                    self._say(news["say"])
                elif "error" in news:
                    raise LabelwiseError(news["error"])
                else:
                    self._require_same(news["ready"])
                    self.models = news["ready"]
                    slot.worker = worker
                    return
            code = await worker.end()
            raise LabelwiseError(f"a worker died while loading the models (exit code {code}); it may be out of memory")
        finally:
            if slot.worker is not worker:
                worker.kill()
                await worker.end()

    def _require_same(self, loaded: list[dict[str, Any]]) -> None:
        """Two workers must not answer with different models under one name."""
        for before, now in zip(self.models, loaded, strict=False):  # none before the first worker
            if before["fingerprint"] != now["fingerprint"]:
                raise LabelwiseError(
                    f"the files of the model {now['name']!r} have changed since the server started; restart it to use "
                    "the new ones, or put the old ones back"
                )

    async def _keep(self, slot: _Slot) -> None:
        """Read the replies of a slot's worker, and replace the worker when it dies."""
        pause = 0.0
        while True:
            if slot.worker is not None:
                await self._listen(slot, slot.worker)
                pause = 0.0
            try:
                await self._load(slot)
                self._hand_out()
            except (LabelwiseError, OSError) as error:
                pause = min(max(1.0, 2 * pause), _LONGEST_PAUSE)
                self._say(f"cannot start a worker, next attempt in {pause:.0f} s: {error}")
                await asyncio.sleep(pause)

    async def _listen(self, slot: _Slot, worker: WorkerProcess) -> None:
        """Read replies until the worker dies; then put its images back into the queue."""
        culprit_known = False
        while (reply := await worker.receive()) is not None:
            if reply.number != wire.EVENT:
                self._answer(slot, reply)
            elif "batch" in (news := json.loads(reply.text)):
                self._metrics.ran(news["batch"], news["seconds"])
            else:
                self._say(news["leaving"])
                culprit_known = True
        slot.worker = None
        self._metrics.restarted()
        orphans, slot.images = list(slot.images.values()), {}
        for image in reversed(orphans):
            image.deaths += not culprit_known
            if image.deaths >= _DEATHS:
                self._refuse(image, f"was in work when {_DEATHS} workers died; send another file")
            else:
                self._waiting.appendleft(image)
        self._hand_out()
        self._say(f"a worker died (exit code {await worker.end()}); starting another one")

    def _answer(self, slot: _Slot, reply: Reply) -> None:
        image = slot.images.pop(reply.number)
        slot.heard = asyncio.get_running_loop().time()
        if not image.answer.done():
            image.answer.set_result(reply)
        self._hand_out()

    async def _watch(self) -> None:
        """Kill workers that have images but do not answer; they are then replaced."""
        while True:
            await asyncio.sleep(_LOOK)
            hanging = asyncio.get_running_loop().time() - 2 * self._settings.timeout
            for slot in self._slots:
                if slot.worker is not None and slot.images and slot.heard < hanging:
                    slot.worker.kill()
