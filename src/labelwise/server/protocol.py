"""The protocol between the front process and a worker, over the worker's standard input and output.

Numbers and JSON, never pickle: a worker decodes files from strangers, so the front does not trust it.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple

from labelwise.server.settings import KEY_VARIABLE, ServeSettings

_TO_WORKER = struct.Struct("!QII")  # number of the job, length of its options, length of the image
_TO_FRONT = struct.Struct("!QHI")  # number of the job (0: an event), HTTP status, length of the text
EVENT = 0
_GOODBYE = 5.0  # seconds in which a worker may exit by itself


class Job(NamedTuple):
    number: int
    options: dict[str, Any]
    body: bytes


class Reply(NamedTuple):
    """`text` is a piece of the JSON response if the status is 200, else the error."""

    number: int
    status: int
    text: bytes


def read_job(stream: BinaryIO) -> Job | None:
    """The next job; None when the front has closed the pipe or died."""
    head = stream.read(_TO_WORKER.size)
    if len(head) < _TO_WORKER.size:
        return None
    number, options, length = _TO_WORKER.unpack(head)
    content = stream.read(options)
    body = stream.read(length)
    return Job(number, json.loads(content), body) if len(body) == length else None


def pack_reply(reply: Reply) -> bytes:
    return _TO_FRONT.pack(reply.number, reply.status, len(reply.text)) + reply.text


def event(**content: Any) -> Reply:
    """A message that belongs to no job."""
    return Reply(EVENT, 200, json.dumps(content).encode())


class WorkerProcess:
    """A running `labelwise.server.worker`. If it dies, its replies end."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._to, self._from = process, process.stdin, process.stdout

    @classmethod
    async def start(cls, settings: ServeSettings, threads: int) -> WorkerProcess:
        # A process that decodes files from strangers must not know the key.
        environment = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
        # -P: a file in the current folder must not shadow a module.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "labelwise.server.worker", stdin=PIPE, stdout=PIPE, env=environment
        )
        worker = cls(process)
        options = {"settings": settings.model_dump(mode="json"), "threads": threads}
        worker.send(EVENT, json.dumps(options).encode(), b"")
        return worker

    def send(self, number: int, options: bytes, body: bytes) -> None:
        """Never blocks: what the worker has not read yet is buffered; the pool limits how much that is."""
        with suppress(RuntimeError, ConnectionError):  # it has just died; the pool notices by the end of its replies
            self._to.write(_TO_WORKER.pack(number, len(options), len(body)) + options)
            self._to.write(body)  # by itself: it is long and need not be copied

    async def receive(self) -> Reply | None:
        """The next reply; None when the worker is dead."""
        try:
            number, status, length = _TO_FRONT.unpack(await self._from.readexactly(_TO_FRONT.size))
            return Reply(number, status, await self._from.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def news(self) -> dict[str, Any] | None:
        """The next event, before there are jobs; None when the worker is dead."""
        reply = await self.receive()
        return None if reply is None else json.loads(reply.text)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def end(self) -> int:
        """Close the pipe, which ends the worker, and wait; gives its exit code."""
        self._to.close()
        try:
            return await asyncio.wait_for(self._process.wait(), _GOODBYE)
        except TimeoutError:
            self.kill()
            return await self._process.wait()
