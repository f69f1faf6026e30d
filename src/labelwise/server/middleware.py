"""Around every request: check where it comes from and its API key, count and log the response."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelwise.server.uploads import Problem, busy

_ENDPOINTS = frozenset({"predict", "explain", "models", "metrics", "health", "ready"})
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:@/]+?)\.?(:\d+)?", re.IGNORECASE)
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True)
class AccessMiddleware:
    """Refuses requests without the API key or for another host; counts and logs all.

    Args:
        app: The application behind it.
        key: What clients must send; None lets everybody in.
        open_paths: Paths that need no key, and are answered even if the server is `full`.
        metrics: Counts every response.
        hosts: The names of this server; None: any.
        full: Whether there are too many connections.
        log: Called with one line per request.
    """

    app: ASGIApp
    key: str | None
    open_paths: Collection[str]
    metrics: Metrics
    hosts: Collection[str] | None = None
    full: Callable[[], bool] = lambda: False
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
            problem = self._objection(scope["path"], Headers(scope=scope))
            # A refused request is not read: its connection cannot be used again.
            app = self.app if problem is None else problem.closing().response()
            await app(scope, receive, send_and_note)
        finally:
            last = scope["path"].rpartition("/")[2]
            endpoint = last if last in _ENDPOINTS else "other"  # paths that clients invent must not become metrics
            seconds = time.perf_counter() - start
            self.metrics.answered(endpoint, status, seconds)
            if self.log is not None:
                # The path as sent, percent-encoded: it cannot contain a line break that forges a line.
                address = scope["raw_path"].decode("ascii", "replace")
                self.log(f"{scope['method']} {address} {status} {1e3 * seconds:.0f} ms")

    def _objection(self, path: str, headers: Headers) -> Problem | None:
        if self.hosts is not None and (name := foreign_host(headers, self.hosts)) is not None:
            allow = "whoever runs it can allow that host (allow_host)"
            return Problem(403, f"this server does not answer requests for or from {name[:100]!r}; {allow}")
        if path in self.open_paths:
            return None
        if self.full():
            return busy()
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        # In constant time: the duration must not reveal how much of a guess was right.
        if self.key is None or hmac.compare_digest(given.encode("latin-1"), self.key.encode()):
            return None
        text = "this server requires an API key; send it in the header X-API-Key"
        return Problem(401, text, {"WWW-Authenticate": "Bearer"})


def foreign_host(headers: Headers, hosts: Collection[str]) -> str | None:
    """The host that a request is for, or the origin that it comes from, if it is not one of ours.

    Against pages of other sites that a browser on this machine shows: they can give their own name the address
    127.0.0.1 (DNS rebinding), or send requests without reading the responses.

    >>> foreign_host(Headers({"host": "localhost:8000", "origin": "http://localhost:8000"}), LOCAL_HOSTS)
    >>> foreign_host(Headers({"host": "evil.example:8000"}), LOCAL_HOSTS)
    'evil.example:8000'
    >>> foreign_host(Headers({"host": "localhost:8000", "origin": "http://localhost:3000"}), LOCAL_HOSTS)
    'http://localhost:3000'
    """

    def is_ours(host: str, names: Collection[str]) -> bool:
        match = _HOST.fullmatch(host)
        return match is not None and match[1].lower() in names

    given = headers.getlist("host")
    named = set(hosts) - LOCAL_HOSTS  # for a server in front of this one, with a name of its own
    for host in given:
        if not is_ours(host, hosts):
            return host
    for origin in headers.getlist("origin"):
        source = origin.partition("://")[2]
        if source not in given and not is_ours(source, named):
            return origin
    return None


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
