"""Raw connections to a running server, for clients that no HTTP library would be."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from tests.server.serving_kit import RunningServer, png

PHOTO = png(40, 30)
WHOLE = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect(server: RunningServer) -> socket.socket:
    host, port = server.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def everything(connection: socket.socket) -> bytes:
    """What arrives until the server closes the connection."""
    pieces = []
    with suppress(ConnectionError):
        while piece := connection.recv(1 << 16):
            pieces.append(piece)
    return b"".join(pieces)


def ask(server: RunningServer, request: bytes) -> bytes:
    with connect(server) as connection:
        with suppress(ConnectionError):
            connection.sendall(request)
        return everything(connection)


def request(*headers: str, body: bytes = b"", line: str = "POST /predict") -> bytes:
    lines = [f"{line} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def peak(process: int) -> int:
    return int(Path(f"/proc/{process}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
