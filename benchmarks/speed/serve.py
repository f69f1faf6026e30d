"""`python -m benchmarks.speed serve`: a server under load, against `predict` on the same files."""

from __future__ import annotations

import json as json_module
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.speed.report import Check, Column, JsonFile, PlotFile, Report
from labelwise.core.errors import LabelwiseError
from labelwise.engines.measure import memory_of

if TYPE_CHECKING:
    from labelwise.runtime.tagger import Tagger

Scores = list[dict[str, float]]

_WARM_UP = 5.0  # seconds of load before anything counts
_CLOSE = 1e-3  # scores in an answer may differ by this much: another batch, another order of sums


def serve(
    *,
    model: str | None = None,
    photos: Path | None = None,
    images: int = 1000,
    clients: int = 64,
    seconds: float = 120,
    engine: Literal["auto", "torch", "onnxruntime", "openvino"] = "auto",
    workers: int = 1,
    batch: int = 32,
    json: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """A server on loopback under the load of many clients: latency, lost and wrong answers, memory, and throughput.

    `predict` runs on the same files with the same engine before and after. Every answer is compared with it: the same
    labels, scores within 0.001. The clients run in a process of their own and share the cores with the server.

    Parameters
    ----------
    model
        A run, a model folder or a hub id; default: EfficientNet-Lite2 at 224 pixels with an untrained HSQ head.
    photos
        A folder of JPEGs; default: synthetic images of 400 pixels.
    images
        How many of them; the clients send them again and again.
    clients
        Connections that each send an image as soon as the last one is answered.
    seconds
        Of load that count, after 5 to warm up.
    engine
        What runs the model, here and there.
    workers
        Of the server.
    batch
        Images in a batch, at most.
    """
    from benchmarks.speed.models import bench_model, bench_photos, model_name
    from labelwise.engines.load import load

    with tempfile.TemporaryDirectory() as folder:
        source = model
        if source is None:
            source = str(Path(folder) / "model")
            bench_model(None).save(source)
        paths = bench_photos(photos, images, Path(folder) / "photos")
        tagger = load(source, engine=engine, images=1_000_000, batch_size=batch)
        tagger.predict(paths[:batch], batch_size=batch)  # the first run allocates
        expected, before = _offline(tagger, paths, batch)
        options = [f"--engine={tagger.family}", f"--workers={workers}", f"--batch-size={batch}"]
        with running_server(source, *options) as server:
            load_result = _under_load(server, paths, clients, seconds)
        _, after = _offline(tagger, paths, batch)
    offline = 2 / (1 / before + 1 / after)
    wrong, lost = compare(load_result.answers, expected, tagger)
    rows = [
        {"side": "predict, before", "images": len(paths), "images_per_s": before},
        {
            "side": f"serve, {clients} clients",
            "images": load_result.counted,
            "images_per_s": load_result.images_per_second,
            **load_result.latencies(),
            "lost": lost,
            "wrong": wrong,
            "memory_early": load_result.memory_early / 2**20,
            "memory_late": load_result.memory_late / 2**20,
        },
        {"side": "predict, after", "images": len(paths), "images_per_s": after},
    ]
    report = Report(
        "serve",
        f"{clients} clients for {seconds:g} s against predict, engine {tagger.family}, batch {batch}, "
        f"{workers} {'worker' if workers == 1 else 'workers'}",
        [
            Column("side", "side"),
            Column("images", "images", ",d"),
            Column("images_per_s", "images/s", ".1f"),
            *(Column(f"p{percent}", f"p{percent} (ms)", ".0f") for percent in (50, 90, 99)),
            Column("lost", "lost", "d"),
            Column("wrong", "wrong", "d"),
            Column("memory_early", "memory at 25% (MB)", ".0f"),
            Column("memory_late", "at the end (MB)", ".0f"),
        ],
        rows,
        notes=[f"mean batch under load: {load_result.mean_batch:.1f} images"],
        settings={
            "model": model_name(model),
            "photos": photos is not None,
            "images": len(paths),
            "clients": clients,
            "seconds": seconds,
            "engine": tagger.family,
            "workers": workers,
            "batch": batch,
        },
        bars={"images_per_s": "images/s"},
        unit="images/s",
    )
    growth = 100 * (load_result.memory_late / load_result.memory_early - 1)
    report.checks = [
        Check("throughput under load against predict", 100 * load_result.images_per_second / offline, 85, unit="%"),
        Check("answers that were lost", lost, 0, at_most=True, unit=""),
        Check("answers that were wrong", wrong, 0, at_most=True, unit=""),
        Check("memory growth from 25% of the time to the end", growth, 5, at_most=True, unit="%"),
    ]
    report.publish(json, plot)


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    port: int


@contextmanager
def running_server(source: str, *options: str) -> Iterator[Server]:
    """A server of this very labelwise on a free port of loopback; it ends with the block."""
    command = [sys.executable, "-P", "-m", "labelwise", "serve", source, "--port=0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line.strip())
            if line.startswith("serving "):
                break
        else:
            raise LabelwiseError(f"the server did not start: {' '.join(said)}")
        port = int(line.partition("http://127.0.0.1:")[2].split()[0])
        # Nobody reads what it says later, and a full pipe would stop it.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield Server(process, port)
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True)
class Load:
    """What the clients saw."""

    answers: list[tuple[int, float, float, int, str]]  # image, sent, answered, status, body
    start: float  # when it began to count
    seconds: float
    memory_early: int  # bytes, after a quarter of the time
    memory_late: int
    mean_batch: float

    @property
    def _in_time(self) -> list[tuple[int, float, float, int, str]]:
        return [answer for answer in self.answers if self.start <= answer[2] < self.start + self.seconds]

    @property
    def counted(self) -> int:
        return len(self._in_time)

    @property
    def images_per_second(self) -> float:
        return self.counted / self.seconds

    def latencies(self) -> dict[str, float]:
        """Percentiles in ms."""
        import numpy as np

        times = [1e3 * (answered - sent) for _, sent, answered, _, _ in self._in_time]
        return {f"p{percent}": float(np.percentile(times, percent)) for percent in (50, 90, 99)}


def _offline(tagger: Tagger, paths: list[str], batch: int) -> tuple[Scores, float]:
    """Every image's scores, and images per second."""
    start = time.perf_counter()
    predictions = tagger.predict(paths, batch_size=batch)
    speed = len(paths) / (time.perf_counter() - start)
    return [prediction.all_scores for prediction in predictions], speed


def _under_load(server: Server, paths: list[str], clients: int, seconds: float) -> Load:
    order = {"port": server.port, "paths": paths, "clients": clients, "seconds": _WARM_UP + seconds}
    command = [sys.executable, str(Path(__file__).with_name("serve_client.py"))]
    with tempfile.TemporaryFile("w+") as order_file, tempfile.TemporaryFile("w+") as seen_file:
        json_module.dump(order, order_file)
        order_file.seek(0)
        client = subprocess.Popen(command, stdin=order_file, stdout=seen_file)
        start = time.time() + _WARM_UP
        time.sleep(_WARM_UP + seconds / 4)
        early = memory_of(server.process.pid)
        time.sleep(seconds * 3 / 4)
        late = memory_of(server.process.pid)
        if client.wait() != 0:
            raise LabelwiseError("the clients of the benchmark failed; see above")
        seen_file.seek(0)
        answers = [tuple(answer) for answer in json_module.load(seen_file)]
    return Load(answers, start, seconds, early, late, _mean_batch(server.port))


def _mean_batch(port: int) -> float:
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    numbers = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name[:1] != "#"}
    return numbers["labelwise_batch_size_sum"] / numbers["labelwise_batch_size_count"]


def compare(answers: list[tuple[int, float, float, int, str]], expected: Scores, tagger: Tagger) -> tuple[int, int]:
    """How many answers are wrong, and how many are none."""
    wrong = lost = 0
    for image, _, _, status, body in answers:
        if status != 200:
            lost += 1
            continue
        (found,) = json_module.loads(body)["predictions"]
        wrong += not _same(found, expected[image], tagger.thresholds, tagger.config.task == "single-label")
    return wrong, lost


def _same(found: dict[str, Any], expected: dict[str, float], thresholds: dict[str, float], single: bool) -> bool:
    """Scores agree, and so do labels, but where a score is on its threshold within what scores may differ by."""
    scores = found["all_scores"]
    if scores.keys() != expected.keys() or any(abs(scores[label] - expected[label]) > _CLOSE for label in expected):
        return False
    if single:
        (label,) = found["labels"]
        return expected[label] >= max(expected.values()) - _CLOSE
    clear = {label for label, score in expected.items() if abs(score - thresholds[label]) > _CLOSE}
    applies = {label for label in clear if expected[label] >= thresholds[label]}
    return clear.intersection(found["labels"]) == applies
