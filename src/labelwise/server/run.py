"""Start a server, and stop it without losing a response."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from typing import Any, cast

import uvicorn

from labelwise.core.environment import thread_count
from labelwise.core.errors import LabelwiseError
from labelwise.core.terminal import say
from labelwise.server.app import create_app
from labelwise.server.connections import RESERVE, Connection, ConnectionTable
from labelwise.server.middleware import LOCAL_HOSTS, Metrics
from labelwise.server.pool import Pool
from labelwise.server.service import Service
from labelwise.server.settings import ServeSettings

STOP_SECONDS = 5.0  # in which clients may read their responses when the server stops
_FILES = 128  # besides connections: pipes to the workers, standard streams, libraries


class _Server(uvicorn.Server):
    """Drops clients that are late, and leaves signals to us: uvicorn would stop listening before the queue is empty."""

    def __init__(self, config: uvicorn.Config, connections: ConnectionTable) -> None:
        super().__init__(config)
        self._connections = connections

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:  # ten times a second
        self._connections.abort_late()
        return await super().on_tick(counter)


def run_server(
    settings: ServeSettings, *, host: str, port: int, allow_host: Collection[str], key: str | None, access_log: bool
) -> None:
    """Serve until SIGTERM or SIGINT; returns when all accepted requests are answered."""
    listener = _bind(host, port)
    connections = ConnectionTable(_connection_limit(settings), settings.timeout)
    config = uvicorn.Config(
        app=lambda *_: None,  # replaced below, once the event loop runs
        http=cast(Any, partial(Connection, table=connections)),
        log_level="warning",
        access_log=False,  # AccessMiddleware writes one, to stderr
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,  # nothing depends on who the client is
    )
    hosts = _hosts(listener, allow_host, key)
    with listener, asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(settings, config, listener, connections, hosts, key, _say if access_log else None))


async def _serve(
    settings: ServeSettings,
    config: uvicorn.Config,
    listener: socket.socket,
    connections: ConnectionTable,
    hosts: Collection[str] | None,
    key: str | None,
    log: Callable[[str], None] | None,
) -> None:
    metrics = Metrics()
    pool = Pool(settings, thread_count(), metrics, _say)
    stop = _stop_event()
    names = ", ".join(model.name for model in settings.models)
    _say(f"loading {names} …")
    try:
        if not await _finished(pool.start(), stop):
            return
        service = Service(settings, pool, metrics)
        config.app = create_app(service, key=key, hosts=hosts, full=lambda: connections.full, log=log)
        server = _Server(config, connections)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        _say(f"serving {names} on {_address(listener)} (API: /docs); Ctrl-C stops")
        if key is None and not _is_loopback(listener):
            _say("warning: anyone who reaches this address can use it; set an API key (LABELWISE_API_KEY)")
        await stop.wait()
        service.stopping = True  # new images are refused from now on, and /ready says so
        await pool.idle.wait()
        server.should_exit = True
        asyncio.get_running_loop().call_later(STOP_SECONDS, connections.abort_all)
        await serving
    finally:
        await pool.stop()


def _stop_event() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM; a second one exits at once."""
    stop = asyncio.Event()

    def handle() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, handle)
    return stop


async def _finished(work: Coroutine[None, None, None], stop: asyncio.Event) -> bool:
    """Wait for the work; False if we are told to stop before it is done."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        working.result()  # raises what it raised
        return True
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return False


def _bind(host: str, port: int) -> socket.socket:
    """Bound, not listening: connections are refused until the models are loaded, but a taken port is an error now."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:  # OverflowError: no port has such a number
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise LabelwiseError(f"cannot listen on {host}:{port} ({reason}); choose another port or host") from None
    return listener


def _connection_limit(settings: ServeSettings) -> int:
    """`max_connections`, or as many as the system allows open files for; without one left, no worker could start."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return settings.max_connections
    wanted = settings.max_connections + RESERVE + _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(settings.max_connections, soft - RESERVE - _FILES))


def _hosts(listener: socket.socket, allowed: Collection[str], key: str | None) -> frozenset[str] | None:
    """The names that requests may be for; None: any. A key or another address makes them optional: pages of other sites
    do not know the key, and only whoever opens a server to others knows its names."""
    if not allowed and (key is not None or not _is_loopback(listener)):
        return None
    address = listener.getsockname()[0]
    return LOCAL_HOSTS | {f"[{address}]" if ":" in address else address} | {name.lower() for name in allowed}


def _is_loopback(listener: socket.socket) -> bool:
    return ip_address(listener.getsockname()[0]).is_loopback


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _say(text: str) -> None:
    say(text, stderr=True)
