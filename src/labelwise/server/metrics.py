"""Numbers for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
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
        self._batches = Histogram(
            "labelwise_batch_size", "Pictures in a batch.", buckets=_SIZES, registry=self._registry
        )
        self._model_seconds = Counter("labelwise_model_seconds", "Time in the models.", registry=self._registry)
        self._restarts = Counter("labelwise_worker_restarts", "Workers that died.", registry=self._registry)
        self._queue = Gauge("labelwise_queue_length", "Pictures accepted and not answered.", registry=self._registry)
        self._workers = Gauge("labelwise_workers_ready", "Workers that take pictures.", registry=self._registry)

    def watch(self, *, queue: Callable[[], float], workers: Callable[[], float]) -> None:
        """Functions that are asked when somebody looks."""
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
