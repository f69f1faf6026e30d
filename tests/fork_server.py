"""Processes that start warm: a server that has imported PyTorch and labelwise forks once for each command of a test.

A cold `python -m labelwise ...` spends seconds on imports; a forked one is there in milliseconds. Each is a process of
its own, with its own arguments, folder, environment, files and exit status, and takes real signals. What a process
reads once at import time is the server's, but for the settings of the network and the hub. Tests about start-up or
imports take a cold process. For programs that start Python themselves, xdist and torchrun, `executable()` is a file to
start instead. A process whose environment names a network namespace (`NETWORK`) runs there, and so do those it starts.

`conftest.py` starts the server with the session. It imports nothing before its first order, has no threads when it
forks, and ends with its standard input.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

Command = Callable[..., subprocess.CompletedProcess[str]]
ADDRESS = "LABELWISE_FORK_SERVER"  # the environment variable that tells xdist's workers where it listens
NETWORK = "LABELWISE_TEST_NETWORK"  # the environment variable with the name of a namespace (`ip netns`)
HEAVY = ("timm", "torchvision.transforms.v2", "lightning_fabric", "uvicorn")  # pyarrow and onnxruntime start threads


class Process:
    """What a test sees of a forked process: much of `subprocess.Popen`. Its output goes to files, never to a pipe."""

    def __init__(self, arguments: Sequence[str], connection: socket.socket, out: IO[bytes], err: IO[bytes]) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        self._connection, self._out, self._err = connection, out, err
        self.pid = int(connection.recv(32))

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                answer = self._connection.recv(32)
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            assert answer, "the fork server is gone"
            self.returncode = int(answer)
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        return self.output(self._out), self.output(self._err)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    @staticmethod
    def output(file: IO[bytes]) -> str:
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode().replace("\r\n", "\n")


def start(
    *arguments: object,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
) -> Process:
    """Python with these arguments, `-m MODULE ...`, `-c CODE ...` or `FILE ...`, in a process of its own."""
    words = [str(argument) for argument in arguments]
    out, err = (tempfile.TemporaryFile(buffering=0) for _ in range(2))  # noqa: SIM115
    with open(os.devnull, "rb") as nothing:
        given = [nothing if stdin is None else stdin, out if stdout is None else stdout, err]
        if stderr is not None:
            given[2] = given[1] if stderr == subprocess.STDOUT else stderr
        numbers = [file if isinstance(file, int) else file.fileno() for file in given]
        order = {"arguments": words, "cwd": str(cwd or os.getcwd()), "env": dict(os.environ if env is None else env)}
        message = json.dumps(order).encode()
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ[ADDRESS])
        socket.send_fds(connection, [len(message).to_bytes(8, "big")], numbers)
        connection.sendall(message)
        return Process(words, connection, out, err)


def run(
    *arguments: object, input: str | bytes | None = None, timeout: float = 900, **options: Any
) -> subprocess.CompletedProcess[str]:
    """The same, to its end. `input` is what it reads on standard input."""
    with tempfile.TemporaryFile() as given:
        if input is not None:
            given.write(input.encode() if isinstance(input, str) else input)
            given.seek(0)
            options["stdin"] = given
        process = start(*arguments, **options)
        try:
            out, err = process.communicate(timeout)
        except BaseException:
            process.kill()
            raise
    assert process.returncode is not None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def labelwise(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """`labelwise ARGUMENTS`: see `run`. Tests take it as the fixture of this name."""
    return run("-m", "labelwise", *arguments, **options)


def executable() -> Path:
    """`python -u -c CODE ...` or `python -P -m MODULE ...` that is warm. It hands on SIGINT and SIGTERM. If it is
    killed, the process that runs the code reads the end of its standard input."""
    return Path(os.environ[ADDRESS]).with_name("python")


class ForkServer:
    """Started by the test session; `with ForkServer():` ends it, and waits for it so that its time is counted."""

    def __enter__(self) -> ForkServer:
        self._folder = tempfile.TemporaryDirectory(prefix="labelwise-fork-")
        os.environ[ADDRESS] = str(Path(self._folder.name) / "socket")
        executable().write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
        executable().chmod(0o700)
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve", os.environ[ADDRESS]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it listens
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._folder.cleanup()


def serve(address: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    os.write(1, b"ready\n")
    os.dup2(2, 1)  # the session reads the one line above and nothing more
    waiting: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> pid, connection
    warm = False
    while True:
        ready, _, _ = select.select([0, listener, *waiting], [], [])
        if 0 in ready:
            return
        for handle in set(ready) & waiting.keys():
            pid, connection = waiting.pop(handle)
            _, status = os.waitpid(pid, 0)
            os.close(handle)
            with suppress(OSError):  # the test did not wait for it
                connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            connection.close()
        if listener in ready:
            if not warm:
                warm_up()
                warm = True
            connection, _ = listener.accept()
            size, files, _, _ = socket.recv_fds(connection, 8, 3)
            message = b""
            while len(message) < int.from_bytes(size, "big"):
                message += connection.recv(1 << 20)
            if not (pid := os.fork()):
                for handle, (_, other) in waiting.items():
                    os.close(handle)
                    other.close()
                listener.close()
                connection.close()
                behave(json.loads(message), files)
            for file in files:
                os.close(file)
            connection.sendall(str(pid).encode())
            waiting[os.pidfd_open(pid)] = pid, connection


def warm_up() -> None:
    import labelwise

    names = [found.name for found in pkgutil.walk_packages(labelwise.__path__, "labelwise.")]
    for name in (*HEAVY, *names):
        if not name.endswith("__main__"):
            with suppress(ImportError):  # an extra that is not installed
                importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a library starts threads when it is imported: forks are not safe"
    gc.collect()
    gc.freeze()  # the children's collector leaves these pages shared


def behave(order: dict[str, Any], files: array.array[int]) -> NoReturn:
    """Be the ordered process, and end."""
    status = 1
    try:
        os.setpgid(0, 0)
        for target, file in enumerate(files):
            os.dup2(file, target)
            os.close(file)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(order["env"])
        if NETWORK in os.environ:
            with open(f"/run/netns/{os.environ[NETWORK]}") as network:
                assert ctypes.CDLL(None).setns(network.fileno(), 0) == 0
        os.chdir(order["cwd"])
        kind, *sys.argv = order["arguments"]
        sys.path[0] = order["cwd"]
        random.seed()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a session in the background ignores
        sys.modules["torch"].set_num_threads(int(order["env"].get("OMP_NUM_THREADS", 1)))
        for name in ("labelwise.core.environment", "huggingface_hub.constants"):
            importlib.reload(sys.modules[name])
        if kind == "-c":
            exec(compile(sys.argv[0], "<string>", "exec"), {"__name__": "__main__"})
        elif kind == "-m":
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv.insert(0, kind)
            runpy.run_path(kind, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(end.code + "\n")
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            import atexit
            import threading

            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
        finally:
            os._exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the session
        serve(sys.argv[2])
        os._exit(0)  # libraries complain about what gc.freeze() has kept alive
    assert sys.argv[1] in ("-u", "-P")
    process = start(*sys.argv[2:], stdin=0, stdout=1, stderr=2)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(process.pid, number))
    sys.exit(process.wait())
