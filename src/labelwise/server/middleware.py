"""Around every request: check the API key, count and log the response."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Container
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelwise.server.uploads import error_body

_ENDPOINTS = frozenset({"predict", "explain", "models", "metrics", "health", "ready"})
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class ApiKeyMiddleware:
    """Refuses requests without the API key; counts and logs all.

    Args:
        app: The application behind it.
        key: What clients must send; None lets everybody in.
        open_paths: Paths that need no key.
        metrics: Counts every response.
        log: Called with one line per request.
    """

    app: ASGIApp
    key: str | None
    open_paths: Container[str]
    metrics: Metrics
    log: Callable[[str], None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if self._may_pass(scope):
                await self.app(scope, receive, send_and_note)
            else:
                await _REFUSAL(scope, receive, send_and_note)
        finally:
            last = scope["path"].rpartition("/")[2]
            endpoint = last if last in _ENDPOINTS else "other"  # paths that clients invent must not become metrics
            seconds = time.perf_counter() - start
            self.metrics.answered(endpoint, status, seconds)
            if self.log is not None:
                # The path as sent, percent-encoded: it cannot contain a line break that forges a line.
                address = scope["raw_path"].decode("ascii", "replace")
                self.log(f"{scope['method']} {address} {status} {1e3 * seconds:.0f} ms")

    def _may_pass(self, scope: Scope) -> bool:
        if self.key is None or scope["path"] in self.open_paths:
            return True
        headers = Headers(scope=scope)
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        # In constant time: the duration must not reveal how much of a guess was right.
        return hmac.compare_digest(given.encode("latin-1"), self.key.encode())


_REFUSAL = Response(
    error_body("this server requires an API key; send it in the header X-API-Key"),
    401,
    {"WWW-Authenticate": "Bearer", "Connection": "close"},  # the request body is not read
    media_type="application/json",
)


class Metrics:
    """Prometheus metrics of this server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "labelwise_requests", "Answered requests.", ["endpoint", "status"], registry=self._registry
        )
        self._latency = Histogram(
            "labelwise_request_seconds",
            "From the first byte of a request to its answer.",
            ["endpoint"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._batches = Histogram("labelwise_batch_size", "Images in a batch.", buckets=_SIZES, registry=self._registry)
        self._model_seconds = Counter("labelwise_model_seconds", "Time spent in the models.", registry=self._registry)
        self._restarts = Counter("labelwise_worker_restarts", "Workers that were replaced.", registry=self._registry)
        self._queue = Gauge("labelwise_queue_length", "Images accepted but not answered yet.", registry=self._registry)
        self._workers = Gauge("labelwise_workers_ready", "Workers that are ready.", registry=self._registry)

    def watch(self, *, queue: Callable[[], float], workers: Callable[[], float]) -> None:
        """Functions that are called when the metrics are read."""
        self._queue.set_function(queue)
        self._workers.set_function(workers)

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        self._requests.labels(endpoint, str(status)).inc()
        self._latency.labels(endpoint).observe(seconds)

    def ran(self, batch: int, seconds: float) -> None:
        self._batches.observe(batch)
        self._model_seconds.inc(seconds)

    def restarted(self) -> None:
        self._restarts.inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
