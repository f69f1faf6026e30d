"""What a client may do to a connection before and after its requests: limits that uvicorn does not have."""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from labelwise.server.uploads import error_body

MAX_HEADERS = 100
MAX_HEAD_BYTES = 1 << 16  # request line and headers
HEAD_SECONDS = 15.0  # from the connection, or from the last response, to the end of the headers
MAX_PIPELINED = 16  # requests on a connection that are sent before the first one is answered: each takes kilobytes
RESERVE = 32  # connections beyond the limit, for /health and the like


class ConnectionTable:
    """The open connections, and until when those that wait for their clients may wait.

    Args:
        limit: The most connections. One more closes the one that has waited longest; if none waits, it is `full`.
        read_seconds: How long a client may take to read a long response.
    """

    def __init__(self, limit: int, read_seconds: float) -> None:
        self._limit, self.read_seconds = limit, read_seconds
        self._open: set[Connection] = set()
        self._deadlines: dict[Connection, float] = {}  # the longest waiting first

    @property
    def full(self) -> bool:
        return len(self._open) > self._limit

    def add(self, connection: Connection) -> None:
        self._open.add(connection)
        if self.full and self._deadlines:
            self._abort(next(iter(self._deadlines)))
        elif len(self._open) > self._limit + RESERVE:
            self._abort(connection)

    def wait(self, connection: Connection, seconds: float) -> None:
        """The client's turn: to send a request, or to read a response."""
        self.work(connection)
        if connection in self._open:
            self._deadlines[connection] = asyncio.get_running_loop().time() + seconds

    def work(self, connection: Connection) -> None:
        """Our turn."""
        self._deadlines.pop(connection, None)

    def remove(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._deadlines.pop(connection, None)

    def abort_late(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in [late for late, end in self._deadlines.items() if end < now]:
            self._abort(connection)

    def abort_all(self) -> None:
        for connection in list(self._open):
            self._abort(connection)

    def _abort(self, connection: Connection) -> None:
        self.remove(connection)
        connection.transport.abort()


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits on the head of a request and on the client's time, and errors in our form."""

    def __init__(self, *args: Any, table: ConnectionTable, **options: Any) -> None:
        super().__init__(*args, **options)
        self._table = table
        self._head = 0  # bytes since the last one of a body
        self._too_large = False
        self._unanswered: deque[RequestResponseCycle] = deque()  # several if they are pipelined

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._table.add(self)
        self._table.wait(self, HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle in self._unanswered:  # uvicorn tells only the last one, and the others would fail
            cycle.disconnected = True
        self._table.remove(self)

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        # Of a line without end the parser tells nothing. Trailers count as well.
        if self._head > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._too_large = True
            self.send_400_response("")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._require(len(self.headers) < MAX_HEADERS)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        self._require(size <= MAX_HEAD_BYTES and len(self._unanswered) < MAX_PIPELINED)
        if not self.flow.write_paused:
            self._table.work(self)
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        if not self._unanswered and not self.flow.write_paused:
            self._table.wait(self, HEAD_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._table.wait(self, self._table.read_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unanswered:
            self._table.work(self)
        else:
            self._table.wait(self, HEAD_SECONDS)

    def _require(self, fits: bool) -> None:
        if not fits:
            self._too_large = True
            raise ValueError  # stops the parser; uvicorn then calls `send_400_response`

    def send_400_response(self, msg: str) -> None:
        if self._unanswered and not self.cycle.more_body:  # what is wrong is the next request: close after this one
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            return
        status, text = HTTPStatus.BAD_REQUEST, "the request is malformed; send HTTP/1.1"
        if self._too_large:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            text = f"the headers exceed {MAX_HEADERS} lines or {MAX_HEAD_BYTES:,} bytes; send images as the body"
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\nConnection: close"
        body = error_body(text)
        self.transport.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that has sent all and only listens still gets its response."""
        if not self._unanswered or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        return True
