"""Runs Python in a network namespace of its own: which names were looked up, and where did packets go?

    python watched_network.py REPORT.json cold -m labelwise predict photo.jpg

A resolver answers every question with "no such name", and every packet that is not for this machine is seen on its way
out. `warm`: in this process, which may have imported PyTorch, instead of a new one. Needs root and iproute2.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
ALL_PROTOCOLS = 3
NOT_PERMITTED = 77


def enter() -> None:
    """A namespace with nothing but the loopback interface, which is also the way to all other machines."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWNET):
        sys.stderr.write(os.strerror(ctypes.get_errno()))
        sys.exit(NOT_PERMITTED)
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as settings:
        settings.write("nameserver 127.0.0.1\n")
        settings.flush()
        for command in (
            "ip link set lo up",
            "ip route add default dev lo",
            "mount --make-rprivate /",
            f"mount --bind {settings.name} /etc/resolv.conf",
        ):
            try:
                subprocess.run(command.split(), check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                sys.stderr.write(str(error))
                sys.exit(NOT_PERMITTED)


def answer(resolver: socket.socket, lookups: list[str]) -> None:
    while True:
        question, sender = resolver.recvfrom(4096)
        labels, place = list[str](), 12
        while length := question[place]:
            labels.append(question[place + 1 : place + 1 + length].decode())
            place += length + 1
        lookups.append(".".join(labels))
        resolver.sendto(question[:2] + b"\x81\x83" + question[4:6] + bytes(6) + question[12:], sender)


def watch(packets: socket.socket, left: set[str]) -> None:
    while True:
        packet = packets.recv(65535)
        is_v4 = packet[0] >> 4 == 4
        target = socket.inet_ntop(*((socket.AF_INET, packet[16:20]) if is_v4 else (socket.AF_INET6, packet[24:40])))
        if not target.startswith("127.") and target != "::1":
            left.add(target)


def main(report: str, start: str, *command: str) -> None:
    enter()
    lookups, left = list[str](), set[str]()
    resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    resolver.bind(("127.0.0.1", 53))
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL_PROTOCOLS))
    if not (child := os.fork()):
        if start == "cold":
            os.execv(sys.executable, [sys.executable, *command])
        sys.argv[:] = command[1:]
        return runpy.run_module(command[1], run_name="__main__", alter_sys=True) and None
    threading.Thread(target=answer, args=(resolver, lookups), daemon=True).start()
    threading.Thread(target=watch, args=(packets, left), daemon=True).start()
    _, status = os.waitpid(child, 0)
    Path(report).write_text(json.dumps({"lookups": lookups, "packets": sorted(left)}))
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
