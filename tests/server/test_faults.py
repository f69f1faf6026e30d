"""Workers that are killed, a server that is stopped, both under load: every accepted request gets its answer."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from labelwise.runtime.tagger import Tagger
from serving_kit import hammer, running


@pytest.fixture(scope="module")
def expected(tiny_tagger: Tagger, photos: list[str]) -> dict[str, dict[str, float]]:
    return {path: tiny_tagger.predict(path)[0].all_scores for path in photos}


def test_killed_workers_lose_nothing(tiny: Path, photos: list[str], expected: dict[str, dict[str, float]]) -> None:
    with running(tiny, "--workers=2") as server:
        before = set(server.workers())
        assert len(before) == 2

        async def kill_some() -> None:
            for number in range(3):
                await asyncio.sleep(0.2)
                os.kill(server.workers()[0], signal.SIGKILL)
                await asyncio.to_thread(
                    wait_for, lambda wanted=number + 1: server.metric("labelwise_worker_restarts_total") == wanted
                )
                await asyncio.to_thread(wait_for, lambda: server.metric("labelwise_workers_ready") == 2)

        async def both() -> Counter[str]:
            killing = asyncio.create_task(kill_some())
            seen = await hammer(server, photos, expected, until=killing)
            await killing
            return seen

        seen = asyncio.run(both())
        assert set(seen) <= {"right", "503"}
        assert seen["right"] > 50
        assert len(set(server.workers()) - before) >= 1
        assert server.client.post("/predict", content=Path(photos[0]).read_bytes()).status_code == 200
        assert server.stop() == 0
        assert "a worker died (exit code -9)" in "".join(server.said)


def test_a_stop_under_load_answers_what_was_accepted(tiny: Path, photos: list[str], slow_picture: bytes) -> None:
    with running(tiny) as server:

        async def scene() -> tuple[list[httpx.Response], set[int]]:
            async with httpx.AsyncClient(base_url=server.address, timeout=60, limits=NO_LIMITS) as client:
                accepted = [asyncio.create_task(client.post("/predict", content=slow_picture)) for _ in range(10)]
                while server_queue(await client.get("/metrics")) < 10:
                    await asyncio.sleep(0.01)
                server.process.send_signal(signal.SIGTERM)
                late = set()
                while not all(task.done() for task in accepted):
                    try:
                        late.add((await client.get("/ready")).status_code)
                        late.add((await client.post("/predict", content=slow_picture)).status_code)
                    except httpx.TransportError:
                        break
                    await asyncio.sleep(0.01)
                return list(await asyncio.gather(*accepted)), late

        accepted, late = asyncio.run(scene())
        assert [answer.status_code for answer in accepted] == [200] * 10
        assert late - {200} == {503}
        assert server.process.wait(30) == 0
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.address}/health")


NO_LIMITS = httpx.Limits(max_connections=None)


def server_queue(answer: httpx.Response) -> float:
    (line,) = (line for line in answer.text.splitlines() if line.startswith("labelwise_queue_length "))
    return float(line.split()[1])


def test_workers_end_when_the_front_is_killed(tiny: Path) -> None:
    with running(tiny, "--workers=2") as server:
        workers = server.workers()
        assert len(workers) >= 2
        server.process.kill()
        server.process.wait()
        wait_for(lambda: not any(alive(worker) for worker in workers))


def alive(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
