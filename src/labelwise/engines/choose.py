"""Choose the engine of a model: the requested one, or the fastest with the same outputs, measured once and cached.

An exported model, such as the bundled tagger, has its engine: nothing is measured.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from labelwise.core.arrays import Floats
from labelwise.core.environment import thread_count
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write, cache_folder, sha256
from labelwise.engines.convert import FILES, convert, open_file
from labelwise.engines.measure import in_turns, package_version, processor, work_of_others
from labelwise.model.model import LabelModel
from labelwise.model.network import TorchEngine
from labelwise.runtime.sessions import (
    FAMILIES,
    IMAGES_AT_ONCE,
    TOLERANCE,
    Engine,
    EngineName,
    Family,
    relative_difference,
    stream_count,
)

FORMAT = 2  # raised when the same network is converted to a different file, or runs at another speed
WORTH_MEASURING = 500  # images: PyTorch predicts about as many in the time that converting and measuring takes
QUIET = 0.1  # the share of all cores that other processes may use while engines are measured
DOUBTFUL_SECONDS = 86_400
_TIMED_RUNS = 3
_HOPELESS = 3.0  # times as long as the fastest, cold and warm: no more calls are needed to know
Say = Callable[[str], None]


class _Inputs(NamedTuple):
    """What an engine runs on."""

    size: int
    batch_size: int
    full_batches: bool

    def noise(self, images: int) -> Floats:
        return np.random.default_rng(0).standard_normal((images, 3, self.size, self.size), np.float32)


def open_engine(
    name: EngineName,
    module: nn.Module,
    *,
    size: int,
    images: int = 0,
    batch_size: int = 32,
    full_batches: bool = False,
    say: Say | None = None,
) -> Engine:
    """Open an engine for `module`, which is in evaluation mode.

    Args:
        name: The engine, or `auto` for the fastest.
        module: A whole model or a backbone.
        size: Of its input images, in pixels.
        images: How many there will be, about: below 500, `auto` does not measure.
        batch_size: Of the batches; to measure, some of them are enough that keep all threads busy.
        full_batches: Every batch will have this size (`run_full_batch`): such a network is converted much faster.
        say: Called with one line about what `auto` chose and why.
    """
    say = say or (lambda text: None)
    on_gpu = next(module.parameters()).device.type != "cpu"
    if on_gpu and name not in ("auto", "torch"):
        raise LabelwiseError(f"engine {name!r} runs on the CPU, but this model is on a GPU; use torch")
    if on_gpu or name == "torch":
        return _torch_engine(module)
    inputs = _Inputs(size, batch_size, full_batches)
    place = _place(module, inputs)
    if name != "auto":
        return _converted(module, name, place, inputs)
    file = place / f"choice-{_machine()}-{batch_size}.json"
    choice, worth_measuring = _remembered(file), images >= WORTH_MEASURING
    if choice is None and not worth_measuring:
        return TorchEngine(module)
    if choice is None or (worth_measuring and _is_doubtful(choice)):
        why = "once" if choice is None else "again: the machine was busy the last time"
        say(f"measuring the installed engines on this model, {why}")
        choice, fastest = _measured(module, place, inputs)
        _write(file, json.dumps(choice, indent=1) + "\n")
        say(_reason(choice))
        return fastest
    say(_reason(choice))
    family: Family = choice["family"]
    return _torch_engine(module) if family == "torch" else _converted(module, family, place, inputs)


def run_full_batch(engine: Engine, images: Floats, batch_size: int) -> Floats:
    """The outputs for images in batches of `batch_size`; the last one is filled up.

    The last bits of a convolution depend on the batch size: an image's output must not depend on how many others came
    with it, e.g. after an interruption.
    """
    missing = -len(images) % batch_size
    filled = np.concatenate([images, np.zeros((missing, *images.shape[1:]), np.float32)]) if missing else images
    batches = np.split(np.ascontiguousarray(filled), range(batch_size, len(filled), batch_size))
    return np.concatenate([engine(batch) for batch in batches])[: len(images)]


def _remembered(file: Path) -> dict[str, Any] | None:
    try:
        choice = json.loads(file.read_text(encoding="utf-8"))
        complete = choice["images_per_second"] and choice["measured"] and "others" in choice
        return choice if choice["family"] in FAMILIES and complete else None
    except (OSError, ValueError, KeyError, TypeError):  # missing, unreadable or without conditions: measure again
        return None


def _is_doubtful(choice: dict[str, Any]) -> bool:
    """Whether it was measured beside other work, more than a day ago. Beside the same work it may be right."""
    quiet = choice["others"] is None or choice["others"] < QUIET  # None: the system does not tell
    return not quiet and time.time() - choice["measured"] > DOUBTFUL_SECONDS


def _optimized(module: nn.Module) -> nn.Module:
    """Optimise a whole model first. That takes seconds, so it is not done for a few images."""
    return module.optimize() if isinstance(module, LabelModel) else module


def _torch_engine(module: nn.Module) -> TorchEngine:
    return TorchEngine(_optimized(module))


def _measured(module: nn.Module, place: Path, inputs: _Inputs) -> tuple[dict[str, Any], Engine]:
    """The fastest family, the images per second of each, and why others were left out; and the fastest engine."""
    images = inputs.noise(min(inputs.batch_size, 2 * IMAGES_AT_ONCE * stream_count()))
    engines: dict[str, Engine] = {}
    left_out: dict[str, str] = {}
    for family in FAMILIES:
        try:
            engines[family] = _torch_engine(module) if family == "torch" else _converted(module, family, place, inputs)
        except (LabelwiseError, OSError) as error:  # not installed, not convertible, different outputs, or a full disk
            left_out[family] = str(error)
    with work_of_others() as others:
        runs = {family: partial(engine, images) for family, engine in engines.items()}
        times = in_turns(runs, seconds=0, rounds=_TIMED_RUNS, hopeless=_HOPELESS)
    speeds = {family: round(1e3 * len(images) / timing.best, 2) for family, timing in times.items()}
    best = max(speeds, key=lambda family: speeds[family])
    choice = {
        "family": best,
        "images_per_second": speeds,
        "left_out": left_out,
        "measured": round(time.time()),
        "others": others(),
    }
    return choice, engines[best]


def _reason(choice: dict[str, Any]) -> str:
    """
    >>> _reason({"family": "onnxruntime", "images_per_second": {"torch": 25.4, "onnxruntime": 94.0}, "left_out": {}})
    'engine onnxruntime: the fastest here for this model (images/s: onnxruntime 94, torch 25)'
    """
    speeds = sorted(choice["images_per_second"].items(), key=lambda entry: -entry[1])
    text = ", ".join(f"{family} {speed:.0f}" for family, speed in speeds)
    others = "".join(f"; without {family}: {why}" for family, why in choice["left_out"].items())
    return f"engine {choice['family']}: the fastest here for this model (images/s: {text}){others}"


def _converted(module: nn.Module, family: Family, place: Path, inputs: _Inputs) -> Engine:
    """Open the network as ONNX, converted now unless it is cached. Its outputs are compared every time: that costs a
    few images, and the engine may have been upgraded since the last time."""
    path = place / FILES["onnxruntime"]
    if not path.is_file():
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=".unfinished-") as folder:
            batch = IMAGES_AT_ONCE if inputs.full_batches else None
            file = convert(_optimized(module), "onnxruntime", Path(folder), size=inputs.size, batch=batch)
            os.replace(file, path)
    engine, images = open_file(path, family), inputs.noise(2)
    expected = TorchEngine(module)(images)
    for times in (1, stream_count()):  # few images are computed in another way than a batch
        found = engine(np.concatenate([images] * times))
        difference = relative_difference(found, np.concatenate([expected] * times))
        if difference > TOLERANCE:
            raise LabelwiseError(f"engine {family} gives different outputs for this model (by {difference:.1e})")
    return engine


def _place(module: nn.Module, inputs: _Inputs) -> Path:
    """The cache folder of a network, keyed by its weights and by what affects its conversion."""
    versions = [package_version(name) for name in ("torch", "onnxscript")]
    made_for = f"{inputs.size} x {IMAGES_AT_ONCE}" if inputs.full_batches else inputs.size
    digest = sha256(f"engines {FORMAT} {made_for} {versions}", *network_parts(module))
    return cache_folder() / "engines" / digest.hexdigest()[:32]


def network_parts(network: nn.Module) -> Iterator[str | memoryview]:
    """For a digest that depends on every module with its options and on every weight."""
    yield repr(network)
    # Not the state dict: it omits non-persistent buffers.
    for name, tensor in chain(network.named_parameters(), network.named_buffers()):
        yield f"{name} {tensor.dtype} {list(tensor.shape)}\n"
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _machine() -> str:
    """What a measured speed depends on besides the network."""
    versions = [package_version(name) for name in ("torch", "onnxruntime", "openvino")]
    facts = [platform.machine(), processor(), thread_count(), *versions]
    return sha256(json.dumps(facts)).hexdigest()[:16]


def _write(path: Path, text: str) -> None:
    """Atomic, as two processes may be measuring. Without write access the choice is not remembered."""
    with suppress(OSError):
        atomic_write(path, text)
