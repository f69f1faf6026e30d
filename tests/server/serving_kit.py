"""Servers as real processes on free ports of loopback, and a tiny exported model for them.

The workers of an exported model start without PyTorch, in a second or two.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TextIO

import httpx
import numpy as np
import pytest
from PIL import Image

from labelwise.data.preprocessing import Preprocessing
from labelwise.runtime.exported import ExportConfig, config_text
from labelwise.runtime.prediction import TaggerConfig
from tests import fork_server
from tests.fork_server import Process

LABELS = ("boat", "car", "cat", "dog", "sun")
SIZE = 32


class RunningServer:
    def __init__(self, process: Process, stderr: TextIO, address: str, said: list[str]) -> None:
        self.process, self.address, self.said = process, address, said  # what it writes to stderr, line by line
        self._reader = threading.Thread(target=lambda: said.extend(stderr), daemon=True)
        self._reader.start()
        self.client = httpx.Client(base_url=address, timeout=60)

    def workers(self) -> list[int]:
        folders = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(child) for folder in folders for child in folder.read_text().split()]

    def metric(self, name: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def stop(self) -> int:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self._reader.join(10)
        return code


def command(*arguments: object) -> list[str]:
    return ["-m", "labelwise", "serve", *map(str, arguments), "--port", "0"]


@contextmanager
def running(
    *arguments: object, warm_workers: bool = False, setup: str = "", **environment: str
) -> Iterator[RunningServer]:
    """Warm workers have imported PyTorch when they start, and cannot be killed by `workers()`. `setup` is code that the
    front process runs first."""
    reading, writing = os.pipe()
    words = command(*arguments)
    if warm_workers:
        setup = f"import sys; sys.executable = {str(fork_server.executable())!r}"
    if setup:
        words[:2] = "-c", f"{setup}\nfrom labelwise.cli import main; main()"
    process = fork_server.start(*words, env=os.environ | environment, stderr=writing)
    os.close(writing)
    stderr = os.fdopen(reading)
    said: list[str] = []
    try:
        for line in stderr:
            said.append(line)
            if line.startswith("serving "):
                break
        else:
            pytest.fail(f"the server did not start: {said}")
        address = line.split(" on ")[1].split()[0]
        yield RunningServer(process, stderr, address, said)
    finally:
        process.kill()
        process.wait()
        stderr.close()


async def hammer(
    server: RunningServer,
    photos: list[str],
    expected: dict[str, dict[str, float]],
    until: asyncio.Task[None],
    kept: int | None = None,
) -> Counter[str]:
    """Clients that ask and ask, and what came of it; `kept`: how many connections they use again."""
    seen: Counter[str] = Counter()
    bodies = [(path, Path(path).read_bytes()) for path in photos]

    async def client(session: httpx.AsyncClient, turn: int) -> None:
        while not until.done():
            path, body = bodies[turn % len(bodies)]
            turn += 1
            answer = await session.post("/predict?all_scores=true", content=body)
            if answer.status_code == 200:
                (found,) = answer.json()["predictions"]
                right = found["all_scores"] == pytest.approx(expected[path], abs=1e-4)
                seen["right" if right else "wrong"] += 1
            else:
                assert answer.json()["error"]
                seen[str(answer.status_code)] += 1
            await asyncio.sleep(0.02)  # twelve clients keep the server busy all the same

    limits = httpx.Limits(max_keepalive_connections=kept)
    async with httpx.AsyncClient(base_url=server.address, timeout=60, limits=limits) as session:
        await asyncio.gather(*(client(session, number) for number in range(12)))
    return seen


def write_tiny_export(folder: Path, labels: Sequence[str] = LABELS) -> Path:
    """An exported model by hand: the mean colour of the picture, times a matrix."""
    import onnx
    from onnx import TensorProto, helper

    config = TaggerConfig(
        labels=tuple(labels), preprocessing=Preprocessing(size=SIZE), thresholds=(0.4, 0.5, 0.6, 0.5, 0.45)
    )
    weights = np.random.default_rng(0).normal(size=(3, len(LABELS))).astype(np.float32) * 3
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["images"], ["mean"]),
            helper.make_node("Flatten", ["mean"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["out"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["b", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["b", len(LABELS)])],
        [helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    text = config_text(ExportConfig(kind="onnx", other_sizes=False), config.model_dump(mode="json"))
    helper.set_model_props(model, {"labelwise": text})
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    (folder / "config.json").write_text(text)
    return folder


def png(width: int, height: int) -> bytes:
    file = BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(file, "PNG", compress_level=1)
    return file.getvalue()
