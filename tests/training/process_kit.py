"""`labelwise train` in real processes that are warm: alone, as torchrun starts them, and under torchrun itself."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests import fork_server
from tests.fork_server import Process

TRAIN = ("-m", "labelwise", "train")


def start(*arguments: str, program: tuple[str, ...] = TRAIN, **environment: str) -> Process:
    return fork_server.start(*program, *arguments, env=os.environ | environment, stderr=subprocess.STDOUT)


def finished(*processes: Process) -> None:
    for process in processes:
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output


def start_two(*arguments: str, program: tuple[str, ...] = TRAIN) -> list[Process]:
    """As torchrun starts them, but nobody ends one if the other fails."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    meeting |= {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0"}
    return [start(*arguments, program=program, **meeting, RANK=rank, LOCAL_RANK=rank) for rank in ("0", "1")]


def two_processes(*arguments: str, program: tuple[str, ...] = TRAIN) -> None:
    finished(*start_two(*arguments, program=program))


def torchrun(*arguments: str, program: tuple[str, ...] = TRAIN) -> None:
    """It starts what PYTHON_EXEC names: here a Python that is warm."""
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    command += ["--master-port", free_port(), *program, *arguments]
    done = fork_server.run(*command, env=os.environ | {"PYTHON_EXEC": str(fork_server.executable())}, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    if program is TRAIN:
        assert done.stderr.count("Evaluate it with") == 1  # once, not by each process


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def same_bits(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())
