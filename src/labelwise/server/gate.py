"""Around every request: the key is checked, and the answer is counted."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Container

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelwise.server.metrics import Metrics
from labelwise.server.problem import error_body

_ENDPOINTS = frozenset({"predict", "explain", "models", "metrics", "health", "ready"})


class Gate:
    """`log` gets a line for each request, if there is one."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        key: str | None,
        open_paths: Container[str],
        metrics: Metrics,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self._app, self._open_paths, self._metrics, self._log = app, open_paths, metrics, log
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_and_see(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if self._may_pass(scope):
                await self._app(scope, receive, send_and_see)
            else:
                await _refuse(send_and_see)
        finally:
            last = scope["path"].rpartition("/")[2]
            endpoint = last if last in _ENDPOINTS else "other"  # names that strangers make up must not become metrics
            seconds = time.perf_counter() - start
            self._metrics.answered(endpoint, status, seconds)
            if self._log is not None:
                # The address as it came, percent-encoded: it cannot hold a line break that forges a line.
                address = scope["raw_path"].decode("ascii", "replace")
                self._log(f"{scope['method']} {address} {status} {1e3 * seconds:.0f} ms")

    def _may_pass(self, scope: Scope) -> bool:
        if self._key is None or scope["path"] in self._open_paths:
            return True
        headers = Headers(scope=scope)
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        # In constant time: how long a comparison takes must not tell how much of a guess was right.
        return hmac.compare_digest(given.encode("latin-1"), self._key)


async def _refuse(send: Send) -> None:
    body = error_body("this server needs its API key: send it in the header X-API-Key")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"www-authenticate", b"Bearer"), (b"connection", b"close")]  # the request's body is not read
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
