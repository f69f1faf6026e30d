"""Two hosts on this machine: network namespaces that a cable connects. It can be cut, and a host can die."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests import fork_server
from tests.fork_server import Process

PORT = 29400
ADDRESSES = ("192.0.2.1", "192.0.2.2")  # for documentation: no real machine has them


class Host:
    """One of the two. `address` is reached by the other one alone: nothing leads out of these namespaces."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address

    def torchrun(self, meeting: Host, *arguments: str) -> Process:
        """torchrun with one process on this host, in a group that may shrink to one host and grow to two. They meet at
        one of them, which must not be lost."""
        # One that is silent for 5 s is taken for lost, and one alone waits 2 s for another. Two hosts meet at once.
        conf = "keep_alive_interval=1,keep_alive_max_attempt=5,last_call_timeout=2"
        conf += f",is_host={int(self is meeting)}"  # both have this machine's name
        command = ["-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{meeting.address}:{PORT}", "--rdzv-id", "test"]
        command += ["--rdzv-conf", conf, "--local-addr", self.address, *arguments]
        warm = {"PYTHON_EXEC": str(fork_server.executable()), fork_server.NETWORK: self.name}
        # Else a host that comes back waits for an address that torchrun (2.15) tells in the first round alone.
        environment = os.environ | warm | {"GLOO_SOCKET_IFNAME": "eth0", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return fork_server.start(*command, env=environment, stderr=subprocess.STDOUT)

    def processes(self) -> list[int]:
        return [int(pid) for pid in ip("netns", "pids", self.name).split()]

    def kill(self) -> None:
        """End all its processes at once."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)

    def cut_off(self) -> None:
        ip("-n", self.name, "link", "set", "eth0", "down")

    def connect(self) -> None:
        ip("-n", self.name, "link", "set", "eth0", "up")


def ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=True)
    return done.stdout


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    hosts = tuple(Host(f"labelwise-{os.getpid()}-{n}", address) for n, address in enumerate(ADDRESSES))
    made: list[Host] = []
    try:
        try:
            for host in hosts:
                ip("netns", "add", host.name)
                made.append(host)
            ends = [["eth0", "netns", host.name] for host in hosts]
            ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
            for host in hosts:
                ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    ip("-n", host.name, "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"needs root, network namespaces and iproute2 ({error})")
        yield hosts[0], hosts[1]
    finally:
        for host in made:
            host.kill()
            ip("netns", "delete", host.name)
