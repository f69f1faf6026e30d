"""Which engine runs a model: the one asked for, or the fastest that agrees, measured once and remembered."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write, cache_folder, sha256
from labelwise.data.decode import thread_count
from labelwise.engines.convert import FILES, convert, open_file
from labelwise.model.model import LabelModel
from labelwise.model.network import TorchEngine
from labelwise.runtime.sessions import (
    FAMILIES,
    TOLERANCE,
    Engine,
    EngineName,
    Family,
    relative_difference,
)


def network_parts(network: nn.Module) -> Iterator[str | memoryview]:
    """For a digest that depends on every module with its options and on every weight."""
    yield repr(network)
    # Not the state dict: it leaves out the buffers that are not saved.
    for name, tensor in chain(network.named_parameters(), network.named_buffers()):
        yield f"{name} {tensor.dtype} {list(tensor.shape)}\n"
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


FORMAT = 1  # to be raised whenever the same network would be converted to another file
WORTH_MEASURING = 500  # images: converting and measuring takes about as long as PyTorch needs for them
_TIMED_RUNS = 3

Say = Callable[[str], None]


def open_engine(
    name: EngineName, module: nn.Module, *, size: int, images: int = 0, batch_size: int = 32, say: Say | None = None
) -> Engine:
    """An engine for `module`, which is in evaluation mode. `images` is the work to be done with it, as far as known;
    `say` is told in one line what "auto" chose by measuring, and why."""
    say = say or (lambda text: None)
    on_gpu = next(module.parameters()).device.type != "cpu"
    if on_gpu and name not in ("auto", "torch"):
        raise LabelwiseError(f"engine {name!r} runs on the CPU, this model is on a GPU; use the engine torch")
    if on_gpu or name == "torch":
        return _torch_engine(module)
    place = _place(module, size)
    if name != "auto":
        return _converted(module, name, place, size, batch_size)
    file = place / f"choice-{_machine()}-{batch_size}.json"
    choice = _remembered(file)
    if choice is None:
        if images < WORTH_MEASURING:
            return TorchEngine(module)
        say("measuring the installed engines on this model, once")
        choice = _measured(module, place, size, batch_size)
        _write(file, json.dumps(choice, indent=1) + "\n")
    say(_reason(choice))
    family: Family = choice["family"]
    return _torch_engine(module) if family == "torch" else _converted(module, family, place, size, batch_size)


def _remembered(file: Path) -> dict[str, Any] | None:
    try:
        choice = json.loads(file.read_text(encoding="utf-8"))
        return choice if choice["family"] in FAMILIES and choice["images_per_second"] else None
    except (OSError, ValueError, KeyError, TypeError):  # none there, or one that nobody can read: it is measured again
        return None


def _optimized(module: nn.Module) -> nn.Module:
    """A whole model is made faster first. That takes seconds, so not for a few images."""
    return module.optimize() if isinstance(module, LabelModel) else module


def _torch_engine(module: nn.Module) -> TorchEngine:
    return TorchEngine(_optimized(module))


def _measured(module: nn.Module, place: Path, size: int, batch_size: int) -> dict[str, Any]:
    """The fastest family, each one's images per second, and why others were left out."""
    images = _noise(batch_size, size)
    speeds: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for family in FAMILIES:
        try:
            engine = _torch_engine(module) if family == "torch" else _converted(module, family, place, size, batch_size)
        except (LabelwiseError, OSError) as error:  # not installed, not convertible, other outputs, or a full disk
            left_out[family] = str(error)
            continue
        engine(images)  # the first run allocates
        times = []
        for _ in range(_TIMED_RUNS):
            start = time.perf_counter()
            engine(images)
            times.append(time.perf_counter() - start)
        speeds[family] = round(batch_size / min(times), 2)
    return {"family": max(speeds, key=lambda family: speeds[family]), "images_per_second": speeds, "left_out": left_out}


def _reason(choice: dict[str, Any]) -> str:
    """
    >>> _reason({"family": "onnxruntime", "images_per_second": {"torch": 25.4, "onnxruntime": 94.0}, "left_out": {}})
    'engine onnxruntime: the fastest here for this model (images/s: onnxruntime 94, torch 25)'
    """
    speeds = sorted(choice["images_per_second"].items(), key=lambda entry: -entry[1])
    text = ", ".join(f"{family} {speed:.0f}" for family, speed in speeds)
    others = "".join(f"; without {family}: {why}" for family, why in choice["left_out"].items())
    return f"engine {choice['family']}: the fastest here for this model (images/s: {text}){others}"


def _converted(module: nn.Module, family: Family, place: Path, size: int, batch_size: int) -> Engine:
    """The engine on the network as ONNX, converted now if it was not before. Whether it agrees is seen each time: that
    costs two small batches, and the engine may be of another version than the last one."""
    path = place / FILES["onnxruntime"]
    if not path.is_file():
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=".unfinished-") as folder:
            os.replace(convert(_optimized(module), "onnxruntime", Path(folder), size=size), path)
    engine, images = open_file(path, family), _noise(min(batch_size, 2), size)
    difference = relative_difference(engine(images), TorchEngine(module)(images))
    if difference > TOLERANCE:
        raise LabelwiseError(f"engine {family} gives other outputs for this model (they differ by {difference:.1e})")
    return engine


def _place(module: nn.Module, size: int) -> Path:
    """The folder of everything about one network, named by its weights and by what decides how it is converted."""
    versions = [_version(name) for name in ("torch", "onnxscript")]
    digest = sha256(f"engines {FORMAT} {size} {versions}", *network_parts(module))
    return cache_folder() / "engines" / digest.hexdigest()[:32]


def _machine() -> str:
    """What a measured speed depends on beside the network."""
    versions = [_version(name) for name in ("torch", "onnxruntime", "openvino")]
    facts = [platform.machine(), _processor(), thread_count(), *versions]
    return sha256(json.dumps(facts)).hexdigest()[:16]


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    return next((line for line in text.splitlines() if line.startswith("model name")), "")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _noise(batch: int, size: int) -> Any:
    return np.random.default_rng(0).standard_normal((batch, 3, size, size), np.float32)


def _write(path: Path, text: str) -> None:
    """All of it or nothing, as two processes may be measuring. Where nothing can be written, nothing is remembered."""
    with suppress(OSError):
        atomic_write(path, text)
