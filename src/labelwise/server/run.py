"""Start a server, and stop it without losing a response."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import uvicorn

from labelwise.core.errors import LabelwiseError
from labelwise.core.terminal import say
from labelwise.data.decode import thread_count
from labelwise.server.app import create_app
from labelwise.server.middleware import Metrics
from labelwise.server.pool import Pool
from labelwise.server.service import Service
from labelwise.server.settings import ServeSettings


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn would stop listening before the queue is empty."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_server(settings: ServeSettings, *, host: str, port: int, key: str | None, access_log: bool) -> None:
    """Serve until SIGTERM or SIGINT; returns when all accepted requests are answered."""
    listener = _bind(host, port)
    config = uvicorn.Config(
        app=lambda *_: None,  # replaced below, once the event loop runs
        log_level="warning",
        access_log=False,  # ApiKeyMiddleware writes one, to stderr
        lifespan="off",
        ws="none",
        server_header=False,
    )
    with listener, asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(settings, config, listener, key, _say if access_log else None))


async def _serve(
    settings: ServeSettings,
    config: uvicorn.Config,
    listener: socket.socket,
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
        config.app = create_app(service, key=key, log=log)
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        _say(f"serving {names} on {_address(listener)} (API: /docs); Ctrl-C stops")
        if key is None and not ip_address(listener.getsockname()[0]).is_loopback:
            _say("warning: anyone who reaches this address can use it; set an API key (LABELWISE_API_KEY)")
        await stop.wait()
        service.stopping = True  # new images are refused from now on, and /ready says so
        await pool.idle.wait()
        server.should_exit = True
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


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _say(text: str) -> None:
    say(text, stderr=True)
