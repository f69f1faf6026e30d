"""Many clients in one light process, for `python -m benchmarks.speed serve`: it shares the cores with the server.

Reads what to do as JSON from standard input, writes what it saw as JSON to standard output.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, cast


class _Client(asyncio.Protocol):
    """One connection that sends an image, waits for the answer, and sends the next one."""

    def __init__(self, load: _Load) -> None:
        self._load, self._received = load, bytearray()
        self._image: int | None = None  # that it waits for
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of classes of its own
        self._next()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head = self._received.find(b"\r\n\r\n")
        if head < 0:
            return
        fields = self._received[:head].lower()
        start = fields.index(b"content-length:") + len(b"content-length:")
        length = int(fields[start:].split(b"\r\n", 1)[0])
        end = head + 4 + length
        if len(self._received) >= end:
            status, body = int(self._received[9:12]), bytes(self._received[head + 4 : end])
            self._received.clear()
            self._answered(status, body)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._image is not None:
            self._answered(0, str(exc or "the connection was closed").encode())

    def _answered(self, status: int, body: bytes) -> None:
        self._load.answers.append((self._image, self._sent, time.time(), status, body.decode()))
        self._image = None
        if status:
            self._next()
        else:
            self._load.leave()

    def _next(self) -> None:
        self._image = self._load.draw()
        if self._image is None:
            self._load.leave()
            self._transport.close()
            return
        self._sent = time.time()
        self._transport.writelines(self._load.requests[self._image])


class _Load:
    def __init__(self, order: dict[str, Any]) -> None:
        self.requests = [_request(order["port"], Path(path).read_bytes()) for path in order["paths"]]
        self.answers: list[tuple[int | None, float, float, int, str]] = []
        self._end = time.time() + order["seconds"]
        self._left = order["clients"]
        self._drawn = 0
        self.done = asyncio.Event()

    def draw(self) -> int | None:
        """The number of the next image; None when time is up."""
        if time.time() >= self._end:
            return None
        self._drawn += 1
        return (self._drawn - 1) % len(self.requests)

    def leave(self) -> None:
        self._left -= 1
        if not self._left:
            self.done.set()


def _request(port: int, body: bytes) -> list[bytes]:
    head = (
        f"POST /predict?all_scores=true HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return [head.encode(), body]


async def _run(order: dict[str, Any]) -> list[Any]:
    load = _Load(order)
    loop = asyncio.get_running_loop()
    for _ in range(order["clients"]):
        await loop.create_connection(lambda: _Client(load), "127.0.0.1", order["port"])
    await load.done.wait()
    return load.answers


def main() -> None:
    from uvicorn import Config

    order = json.load(sys.stdin)
    factory = Config("").get_loop_factory()  # the same event loop as the server's: uvloop if it is there
    with asyncio.Runner(loop_factory=factory) as runner:
        json.dump(runner.run(_run(order)), sys.stdout)


if __name__ == "__main__":
    main()
