"""A connection to Ray: to a cluster, or to one on this machine that ends with the work."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from labelwise.core.errors import LabelwiseError, missing_extra


@contextmanager
def ray_cluster(address: str | None, cores: int | None = None) -> Iterator[Any]:
    """The module `ray`, connected. Without an `address`, Ray runs on this machine only, on so many cores (default: all
    of them), and ends with the block."""
    # Ray reads these at import.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # else it warns about Ray Data's own processes
    if address is None:
        # On Linux, Ray listens on all interfaces, even with _node_ip_address="127.0.0.1"; this setting keeps it on the
        # loopback address, as on other systems.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        # As important as this process, not the least important of all (15): on a busy machine that takes minutes.
        os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
    except ImportError:
        raise missing_extra("ray", "ray") from None
    if ray.is_initialized():  # by our caller
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            with _without_api_server(ray._private.services):
                ray.init("local", num_cpus=cores, include_dashboard=False, **quiet)  # never a running cluster
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        if address is None:
            raise LabelwiseError(f"Ray cannot start on this machine ({reason})") from None
        raise LabelwiseError(
            f"cannot connect to a Ray cluster at {address!r} ({reason}); start one with: ray start --head, and set the "
            "same RAY_AUTH_TOKEN on both sides if it requires one"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _without_api_server(services: Any) -> Iterator[None]:
    """Even without its page and with usage reports off, this process asks the hosts of three clouds where it runs. To
    Ray this looks as if it could not be started, which it takes for granted."""
    start, services.start_api_server = services.start_api_server, lambda *_, **__: (None, None)
    try:
        yield
    finally:
        services.start_api_server = start
