"""Who gets which picture, with workers that do what the test wants: some pictures kill them, some make them hang."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from labelwise.core.errors import LabelwiseError
from labelwise.server import pool as pool_module
from labelwise.server import protocol as wire
from labelwise.server.middleware import Metrics
from labelwise.server.pool import Pool
from labelwise.server.protocol import Reply
from labelwise.server.settings import ServeSettings

pytest.importorskip("prometheus_client", reason="needs the extra serve")


class FakeWorker:
    """Answers with what it got; `poison` kills it when its batch runs, `slow` is never answered."""

    started = 0
    most_at_once = 0

    def __init__(self) -> None:
        self.replies: asyncio.Queue[Reply | None] = asyncio.Queue()
        self.replies.put_nowait(wire.event(ready=[{"name": "m", "fingerprint": "f"}]))
        self.batch: list[tuple[int, bytes]] = []
        self.dead = False

    @classmethod
    async def start(cls, settings: ServeSettings, threads: int) -> FakeWorker:
        FakeWorker.started += 1
        return cls()

    def send(self, number: int, options: bytes, body: bytes) -> None:
        if not self.batch:
            asyncio.get_running_loop().call_later(0.01, self.run)
        self.batch.append((number, body))

    def run(self) -> None:
        FakeWorker.most_at_once = max(FakeWorker.most_at_once, len(self.batch))
        batch, self.batch = self.batch, []
        if self.dead or any(body == b"poison" for _, body in batch):
            self.kill()
            return
        for number, body in batch:
            if body != b"slow":
                self.replies.put_nowait(Reply(number, 200, body))

    async def receive(self) -> Reply | None:
        return await self.replies.get()

    async def news(self) -> dict[str, Any] | None:
        reply = await self.receive()
        return None if reply is None else json.loads(reply.text)

    def kill(self) -> None:
        self.dead = True
        self.replies.put_nowait(None)

    async def end(self) -> int:
        return -9


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "WorkerProcess", FakeWorker)
    monkeypatch.setattr(pool_module, "_LOOK", 0.02)
    FakeWorker.started = FakeWorker.most_at_once = 0


async def run(bodies: list[bytes], said: list[str] | None = None, **settings: Any) -> list[Reply]:
    values = {"models": [{"name": "m", "source": "m"}], "batch_size": 4, **settings}
    pool = Pool(ServeSettings.parse(values, "test"), 1, Metrics(), (said if said is not None else []).append)
    await pool.start()
    try:
        answers = await asyncio.wait_for(asyncio.gather(*(pool.submit({}, body) for body in bodies)), 20)
        assert pool.unanswered == 0
        assert pool.idle.is_set()
        return list(answers)
    finally:
        await pool.stop()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_picture_that_kills_is_refused_and_its_neighbours_are_answered(workers: int) -> None:
    bodies = [b"%d" % number for number in range(20)]
    bodies.insert(3, b"poison")
    said: list[str] = []
    answers = asyncio.run(run(bodies, said, workers=workers))
    poisoned = answers.pop(3)
    assert poisoned.status == 503
    assert b"2 workers died" in poisoned.text
    assert [answer[1:] for answer in answers] == [(200, body) for body in bodies if body != b"poison"]
    assert FakeWorker.started == workers + 2
    assert len(said) == 2


def test_a_worker_gets_two_batches_at_most() -> None:
    answers = asyncio.run(run([b"%d" % number for number in range(100)]))
    assert [int(answer.text) for answer in answers] == list(range(100))
    assert FakeWorker.most_at_once == 2 * 4 + 1


def test_a_late_picture_is_refused_and_a_worker_that_hangs_is_replaced() -> None:
    async def scene() -> list[Reply]:
        first = await run([b"quick", b"slow"], timeout=0.1)
        assert FakeWorker.started == 1
        return first

    quick, slow = asyncio.run(scene())
    assert quick[1:] == (200, b"quick")
    assert (slow.status, b"too long" in slow.text) == (503, True)

    async def hang() -> None:
        values = {"models": [{"name": "m", "source": "m"}], "timeout": 0.05}
        pool = Pool(ServeSettings.parse(values, "test"), 1, Metrics(), lambda text: None)
        await pool.start()
        await pool.submit({}, b"slow")
        started = FakeWorker.started
        while FakeWorker.started == started:
            await asyncio.sleep(0.01)
        assert (await pool.submit({}, b"next")).text == b"next"
        await pool.stop()

    asyncio.run(asyncio.wait_for(hang(), 20))


def test_a_model_that_cannot_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(settings: ServeSettings, threads: int) -> FakeWorker:
        worker = FakeWorker()
        worker.replies = asyncio.Queue()
        worker.replies.put_nowait(wire.event(error="no model 'x'"))
        return worker

    monkeypatch.setattr(FakeWorker, "start", broken)
    with pytest.raises(LabelwiseError, match="no model 'x'"):
        asyncio.run(run([]))
