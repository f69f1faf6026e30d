"""What must be settled before other libraries start: that they report nothing, and how their threads wait.

`import labelwise` does this first, since libraries read their switches when they are imported. Processes that we start
inherit them; Ray's workers on other machines import labelwise, too. What a user has set stays as it is.
"""

from __future__ import annotations

import errno
import os
import re
import sys

# How each library is told to report nothing.
_SILENT = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime; its function of that name comes too late: it reports its import
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
# PyTorch's threads wait for each other after every operation. By default they spin for milliseconds, which wins little
# on an idle machine. Beside other work, spinning takes the cores from the very threads that are waited for.
# benchmarks/busy_machine.py compares the choices.
_SPINS = {"GOMP_SPINCOUNT": "1000"}
_LOCAL = re.compile(r"|localhost\.?|(::ffff:)?127(\.\d+){3}|0\.0\.0\.0|::1?")


class OfflineError(OSError):
    """Somebody asked for another machine, and the user does not want that. Libraries quote its `strerror`."""

    def __init__(self, host: str) -> None:
        super().__init__(errno.ENETUNREACH, f"{host} is not asked (LABELWISE_OFFLINE=1)")

    def __str__(self) -> str:
        return str(self.strerror)


def offline_by() -> str | None:
    """The environment variable that keeps us from asking the hub; None if we may.

    >>> offline_by() is None or offline_by() in ("LABELWISE_OFFLINE", "HF_HUB_OFFLINE")
    True
    """
    switches = ("LABELWISE_OFFLINE", "HF_HUB_OFFLINE")
    off = ("", "0", "no", "off", "false")
    return next((name for name in switches if os.environ.get(name, "").strip().lower() not in off), None)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: Python calls it before each look-up and connection of any library."""
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        host = arguments[0]
    elif event == "socket.getnameinfo" and isinstance(arguments[0], tuple):
        host = arguments[0][0]
    elif event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(arguments[1], tuple):
        host = arguments[1][0]  # otherwise the name of a file
    else:
        return
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    if not _LOCAL.fullmatch(name):
        raise OfflineError(name)


def thread_count() -> int:
    """One thread per core that this process may use; OMP_NUM_THREADS overrides it, as in PyTorch."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


for _name, _value in (_SILENT if "OMP_WAIT_POLICY" in os.environ else _SILENT | _SPINS).items():
    os.environ.setdefault(_name, _value)
# OpenVINO and NNCF have no switch besides a file in the home folder. Without this package they report nothing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
if offline_by() == "LABELWISE_OFFLINE":
    os.environ["HF_HUB_OFFLINE"] = "1"  # its libraries then take what is in their cache
    sys.addaudithook(_refuse)
