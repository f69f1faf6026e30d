"""The front's side of the workers: who gets which picture, and what happens when one dies.

Every accepted picture stays in the front's memory until it is answered, so the death of a worker loses none.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from labelwise.core.errors import LabelwiseError
from labelwise.server import protocol as wire
from labelwise.server.middleware import Metrics
from labelwise.server.protocol import Reply, WorkerProcess
from labelwise.server.settings import ServeSettings

_DEATHS = 2  # workers that a picture may take with it before it is refused
_LONGEST_PAUSE = 30.0  # seconds between two attempts to start a worker that dies again and again
_LOOK = 1.0  # seconds between two looks for workers that hang


class Answer(NamedTuple):
    status: int
    text: bytes


class Picture:
    """An accepted picture, until it is answered."""

    def __init__(self, number: int, options: bytes, body: bytes, answer: asyncio.Future[Answer]) -> None:
        self.number, self.options, self.body, self.answer = number, options, body, answer
        self.deaths = 0


class _Slot:
    """A place for a worker: the process that fills it changes when one dies."""

    def __init__(self) -> None:
        self.worker: WorkerProcess | None = None  # None while none is ready
        self.pictures: dict[int, Picture] = {}  # that it has and has not answered
        self.heard = 0.0  # when it last answered, or got something to do

    @property
    def has_suspect(self) -> bool:
        return any(picture.deaths for picture in self.pictures.values())


class Pool:
    def __init__(self, settings: ServeSettings, threads: int, metrics: Metrics, say: Callable[[str], None]) -> None:
        self._settings, self._metrics, self._say = settings, metrics, say
        self._threads = max(1, threads // settings.workers)
        # One batch in the model, the next one being decoded, and a few more so that neither ever waits for the front.
        self._window = 2 * settings.batch_size + self._threads
        self._slots = [_Slot() for _ in range(settings.workers)]
        self._waiting: deque[Picture] = deque()
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
        """Returns when all workers are ready; a model that cannot be loaded is a LabelwiseError."""
        # One after the other: the first one may convert the model and measure engines, the others read what it found.
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

    def has_room(self, pictures: int) -> bool:
        return self.unanswered + pictures <= self._settings.queue

    def submit(self, options: dict[str, Any], body: bytes) -> asyncio.Future[Answer]:
        """Accept a picture; whoever calls has looked whether there is room."""
        loop = asyncio.get_running_loop()
        self._numbers += 1
        answer: asyncio.Future[Answer] = loop.create_future()
        picture = Picture(self._numbers, json.dumps(options).encode(), body, answer)
        late = loop.call_later(self._settings.timeout, self._refuse, picture, "took too long; try again later")
        answer.add_done_callback(lambda _: self._done(late))
        self.unanswered += 1
        self.idle.clear()
        self._waiting.append(picture)
        self._hand_out()
        return answer

    def _done(self, late: asyncio.TimerHandle) -> None:
        late.cancel()
        self.unanswered -= 1
        if not self.unanswered:
            self.idle.set()

    def _refuse(self, picture: Picture, reason: str) -> None:
        if not picture.answer.done():
            picture.answer.set_result(Answer(503, f"the picture {reason}".encode()))

    def _hand_out(self) -> None:
        """Give waiting pictures to the workers that have least to do."""
        while self._waiting:
            picture = self._waiting[0]
            if picture.answer.done():  # too late for it
                self._waiting.popleft()
                continue
            open_slots = [slot for slot in self._slots if self._may_take(slot, picture)]
            if not open_slots:
                return
            slot = min(open_slots, key=lambda slot: len(slot.pictures))
            assert slot.worker is not None
            self._waiting.popleft()
            if not slot.pictures:
                slot.heard = asyncio.get_running_loop().time()
            slot.pictures[picture.number] = picture
            slot.worker.send(picture.number, picture.options, picture.body)

    def _may_take(self, slot: _Slot, picture: Picture) -> bool:
        """A picture that was there when a worker died is tried alone: if it is the culprit, no other one suffers."""
        if slot.worker is None or slot.has_suspect:
            return False
        return len(slot.pictures) < (1 if picture.deaths else self._window)

    async def _load(self, slot: _Slot) -> None:
        """Fill the slot with a worker that is ready."""
        worker = await WorkerProcess.start(self._settings, self._threads)
        try:
            while (news := await worker.news()) is not None:
                if "say" in news:
                    self._say(news["say"])
                elif "error" in news:
                    raise LabelwiseError(news["error"])
                else:
                    self.models = news["ready"]
                    slot.worker = worker
                    return
            code = await worker.end()
            raise LabelwiseError(f"a worker ended while it loaded the models (exit code {code}); is memory short?")
        finally:
            if slot.worker is not worker:
                worker.kill()
                await worker.end()

    async def _keep(self, slot: _Slot) -> None:
        """Listen to the worker of a slot, and replace it when it dies."""
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
                self._say(f"a worker cannot be started, next attempt in {pause:.0f} s: {error}")
                await asyncio.sleep(pause)

    async def _listen(self, slot: _Slot, worker: WorkerProcess) -> None:
        """Until the worker is dead and its pictures are back in the queue."""
        while (reply := await worker.receive()) is not None:
            if reply.number == wire.EVENT:
                news = json.loads(reply.text)
                self._metrics.ran(news["batch"], news["seconds"])
            else:
                self._answer(slot, reply)
        slot.worker = None
        self._metrics.restarted()
        orphans, slot.pictures = list(slot.pictures.values()), {}
        for picture in reversed(orphans):
            picture.deaths += 1
            if picture.deaths >= _DEATHS:
                self._refuse(picture, f"was in work when {_DEATHS} workers died; send another file")
            else:
                self._waiting.appendleft(picture)
        self._hand_out()
        self._say(f"a worker died (exit code {await worker.end()}); starting another one")

    def _answer(self, slot: _Slot, reply: Reply) -> None:
        picture = slot.pictures.pop(reply.number)
        slot.heard = asyncio.get_running_loop().time()
        if not picture.answer.done():
            picture.answer.set_result(Answer(reply.status, reply.text))
        self._hand_out()

    async def _watch(self) -> None:
        """A worker that has pictures and gives no answers is killed, and so replaced."""
        while True:
            await asyncio.sleep(_LOOK)
            hanging = asyncio.get_running_loop().time() - 2 * self._settings.timeout
            for slot in self._slots:
                if slot.worker is not None and slot.pictures and slot.heard < hanging:
                    slot.worker.kill()
