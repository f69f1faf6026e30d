"""One worker process as the front sees it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Any

from labelwise.server import wire
from labelwise.server.settings import KEY_VARIABLE, ServeSettings
from labelwise.server.wire import Reply

_GOODBYE = 5.0  # seconds that a worker gets to end by itself


class WorkerProcess:
    """Talks to a `labelwise.server.worker`. Death shows as the end of its replies."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._to, self._from = process, process.stdin, process.stdout

    @classmethod
    async def start(cls, settings: ServeSettings, threads: int) -> WorkerProcess:
        # What decodes strangers' pictures knows no key.
        environment = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
        # -P: a file in the current folder that is called like a module must not be taken for it.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "labelwise.server.worker", stdin=PIPE, stdout=PIPE, env=environment
        )
        worker = cls(process)
        options = {"settings": settings.model_dump(mode="json"), "threads": threads}
        worker.send(wire.EVENT, json.dumps(options).encode(), b"")
        return worker

    def send(self, number: int, options: bytes, body: bytes) -> None:
        """Never blocks: what the worker has not read yet waits here, and the pool limits how much that can be."""
        with suppress(RuntimeError, ConnectionError):  # it has just died; the end of its replies tells the pool
            self._to.write(wire.pack_job_head(number, options, body))
            self._to.write(body)

    async def receive(self) -> Reply | None:
        """The next reply; None when the worker is dead."""
        try:
            number, status, length = wire.unpack_reply_head(await self._from.readexactly(wire.REPLY_HEAD))
            return Reply(number, status, await self._from.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def news(self) -> dict[str, Any] | None:
        """The next event, while there are no jobs; None when the worker is dead."""
        reply = await self.receive()
        return None if reply is None else json.loads(reply.text)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def end(self) -> int:
        """Close the line, which ends the worker, and wait for it; its exit code."""
        self._to.close()
        try:
            return await asyncio.wait_for(self._process.wait(), _GOODBYE)
        except TimeoutError:
            self.kill()
            return await self._process.wait()
