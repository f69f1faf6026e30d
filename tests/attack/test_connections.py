"""Clients that keep connections and give or read nothing: others must not notice."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from socket_kit import PHOTO, WHOLE, connect, everything, peak, request

from labelwise.server.connections import MAX_PIPELINED
from tests.server.serving_kit import RunningServer, png, running

pytestmark = pytest.mark.attack


@pytest.fixture(scope="module")
def server(tiny: Path, wordy: Path) -> Iterator[RunningServer]:
    with running(tiny, wordy) as server:
        yield server


# More than the buffers of the sockets hold.
MUCH = WHOLE.replace(b"/health", b"/models") * (MAX_PIPELINED - 1) + request(line="GET /models")


def test_a_client_that_reads_nothing_delays_a_stop_by_seconds(wordy: Path) -> None:
    with running(wordy) as server, connect(server) as client:
        client.sendall(MUCH)
        time.sleep(1)
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < 30
        assert "Traceback" not in "".join(server.said), "".join(server.said)


def test_a_slow_reader_gets_all(server: RunningServer) -> None:
    with connect(server) as client:
        client.sendall(MUCH)
        time.sleep(1)
        answer = everything(client)
    assert answer.count(b"HTTP/1.1 200") == MAX_PIPELINED
    assert answer.endswith(b"]}")


def test_requests_ahead_of_their_answers_are_few(server: RunningServer) -> None:
    """Each is kept until its turn, and takes a hundred times its bytes."""
    before = peak(server.process.pid)
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(server)) for _ in range(20)]
        for connection in connections:
            connection.sendall(request(body=png(2000, 2000)).replace(b"Connection: close\r\n", b"") + WHOLE * 5000)
        answers = [everything(connection) for connection in connections]
    assert {answer.count(b"HTTP/1.1 200") for answer in answers} == {MAX_PIPELINED}
    assert peak(server.process.pid) - before < 50_000_000


@pytest.fixture(scope="module")
def crowded(tiny: Path, wordy: Path) -> Iterator[RunningServer]:
    """A server that may open 200 files, which leaves 40 for connections; clients must be quick."""
    setup = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "from labelwise.server import connections; connections.HEAD_SECONDS = 2.0"
    )
    with running(tiny, wordy, "--timeout=4", setup=setup) as server:
        yield server


def test_idle_connections_shut_nobody_out(crowded: RunningServer) -> None:
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(connect(crowded))
        with httpx.Client(base_url=crowded.address) as client:
            assert client.get("/health").status_code == 200
            assert client.post("/predict", content=PHOTO).status_code == 200
            (worker,) = crowded.workers()
            os.kill(worker, signal.SIGKILL)  # another one needs files
            assert client.post("/predict", content=PHOTO, timeout=60).status_code == 200


def test_busy_connections_leave_room_for_health(crowded: RunningServer) -> None:
    def predict() -> int:
        return httpx.post(f"{crowded.address}/predict", content=PHOTO).status_code

    with ExitStack() as stack:
        busy: list[socket.socket] = []
        # More than 40: the server closes those whose request it has not yet read when the next ones arrive.
        while len(busy) < 45 or (predict() != 429 and len(busy) < 120):
            busy.append(stack.enter_context(connect(crowded)))
            busy[-1].sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nx")
        assert predict() == 429
        assert httpx.get(f"{crowded.address}/health").status_code == 200
        assert httpx.get(f"{crowded.address}/ready").status_code == 200
        for connection in busy[10:]:
            connection.close()
        last = time.monotonic() + 3  # the server notices one closed connection after the other
        while (status := predict()) == 429 and time.monotonic() < last:
            time.sleep(0.05)
        assert status == 200


@pytest.mark.parametrize(("first", "drip"), [(b"", b""), (b"", b"\r\n"), (WHOLE[:30], b"A"), (WHOLE, b"\r\n")])
def test_a_connection_without_a_request_is_closed(crowded: RunningServer, first: bytes, drip: bytes) -> None:
    """Bytes now and then do not extend its time."""
    start = time.monotonic()
    with connect(crowded) as connection:
        connection.sendall(first)
        connection.settimeout(0.2)
        while time.monotonic() - start < 10:
            try:
                if not connection.recv(1 << 16):
                    break
            except TimeoutError:
                with suppress(ConnectionError):
                    connection.sendall(drip)
            except ConnectionError:
                break
    assert 1.5 < time.monotonic() - start < 5


def test_a_client_that_reads_nothing_is_dropped(crowded: RunningServer) -> None:
    with connect(crowded) as connection:
        connection.sendall(MUCH)
        time.sleep(6)
        assert everything(connection).count(b"HTTP/1.1 200") < MAX_PIPELINED


def test_half_closed_clients_get_their_answer(server: RunningServer) -> None:
    for body, status in ((PHOTO, b"HTTP/1.1 200"), (png(3000, 3000), b"HTTP/1.1 200")):
        with connect(server) as connection:
            connection.sendall(request(body=body).replace(b"Connection: close\r\n", b""))
            connection.shutdown(socket.SHUT_WR)
            assert everything(connection).startswith(status)
    with connect(server) as connection:  # an unfinished request gets none
        connection.sendall(request(body=PHOTO)[:-10])
        connection.shutdown(socket.SHUT_WR)
        assert everything(connection) == b""
