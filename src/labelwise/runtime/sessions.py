"""Engines that run a network from a file: ONNX Runtime and OpenVINO."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from math import ceil
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any, Literal, Protocol, get_args

import numpy as np

from labelwise.core.arrays import Floats
from labelwise.core.environment import thread_count
from labelwise.core.errors import LabelwiseError, missing_extra

Family = Literal["torch", "onnxruntime", "openvino"]
EngineName = Literal["auto", "torch", "onnxruntime", "openvino"]
FAMILIES: tuple[Family, ...] = get_args(Family)

# Engines sum in different orders. Outputs may differ by this share of the largest one (or of 1, if that is more).
TOLERANCE = 1e-4
_WATCHER = "labelwise-time-limit"
# What a thread takes of a batch: more do not stay in its cache, fewer cost a little more each.
IMAGES_AT_ONCE = 2
_LARGE_BYTES = 256 * 2**20  # of a network: it is not opened a second time for batches, which would double its memory
Inputs = dict[str, Floats]
Outputs = dict[str, Floats]


class Engine(Protocol):
    """images [B, 3, H, W] -> logits [B, N] or maps [B, C, h, w], all float32.

    A network that takes known labels also gets `known` [B, N]; without it, no label is known.
    """

    @property
    def family(self) -> Family: ...

    def __call__(self, images: Floats, known: Floats | None = None) -> Floats: ...


def inputs_for(names: Sequence[str], shape: Sequence[Any], images: Floats, known: Floats | None) -> dict[str, Floats]:
    """The inputs of a network by their `names`; `shape` is that of its first output, [B, N].

    >>> inputs_for(["images", "known"], ["batch", 3], np.zeros((1, 3, 8, 8), np.float32), None)["known"].tolist()
    [[-1.0, -1.0, -1.0]]
    """
    first, *further = names
    unknown = np.full((len(images), shape[-1]), -1, np.float32) if further and known is None else known
    return {first: np.ascontiguousarray(images), **{name: np.ascontiguousarray(unknown) for name in further}}


TIME_LIMIT = 600.0  # seconds for a batch: far more than any takes, and less than for ever
_waiting: dict[object, tuple[float, Callable[[], object]]] = {}  # when each running batch is stopped, and how


@contextmanager
def time_limit(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` from another thread if the block takes longer than `TIME_LIMIT`: one thread for all, since starting
    one for each batch would cost a tenth of a millisecond."""
    key = object()
    _waiting[key] = time.monotonic() + TIME_LIMIT, stop
    if _WATCHER not in (thread.name for thread in threading.enumerate()):  # not yet, or lost by a fork
        threading.Thread(target=_watch, name=_WATCHER, daemon=True).start()
    try:
        yield
    finally:
        del _waiting[key]


def _watch() -> None:
    while True:
        time.sleep(min(1.0, TIME_LIMIT))
        for last, stop in list(_waiting.values()):
            if time.monotonic() > last:
                stop()


def relative_difference(found: Floats, expected: Floats) -> float:
    """The largest difference, as a share of the largest expected value (or of 1, if that is more); NaN gives infinity.

    >>> round(relative_difference(np.float32([[0.5, 4.0]]), np.float32([[0.5, 4.2]])), 4)
    0.0476
    """
    if found.shape != expected.shape:
        raise LabelwiseError(f"the engine gives {list(found.shape)} where the model gives {list(expected.shape)}")
    worst = float(np.abs(found - expected).max() / max(1.0, float(np.abs(expected).max())))
    return worst if np.isfinite(worst) else float("inf")


def stream_count() -> int:
    """How many parts of a batch are computed at the same time: as many as there are threads, or so many fewer that a
    batch of 32 keeps all of them busy to its end."""
    parts = 32 // IMAGES_AT_ONCE
    rounds = ceil(parts / thread_count())
    return ceil(parts / rounds)


class SessionEngine(ABC):
    """A network from a file. All threads together compute a few images. A batch is computed in several streams: no
    thread then waits for all others after every operation, which is faster, above all beside other work
    (benchmarks/busy_machine.py)."""

    family: Family
    inputs: list[str]
    output_shape: list[Any]  # of the first output; dynamic sides are no integers
    metadata: dict[str, str]
    _names: list[str]  # of the outputs
    _batch: int | None  # the only batch size that the network takes; None for any
    _whole: Any  # computes with all threads; None if there is only one batch size
    _streams: Any = None  # computes several parts of a batch at the same time; opened when the first batch comes

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._opened = _identity(path)
        with self._readable():
            self._open()
            if self._batch is not None:
                self._streams = self._open_streams()  # now: nothing else will be used

    def __call__(self, images: Floats, known: Floats | None = None) -> Floats:
        first = self._names[0]
        return self._computed([first], images, known)[first]

    def outputs(self, images: Floats, known: Floats | None = None) -> dict[str, Floats]:
        return self._computed(self._names, images, known)

    def _computed(self, names: list[str], images: Floats, known: Floats | None) -> Outputs:
        inputs, streams = inputs_for(self.inputs, self.output_shape, images, known), stream_count()
        few = self._batch is None and (streams == 1 or len(images) < streams * IMAGES_AT_ONCE)
        session = self._whole if few else self._streams_or_whole()
        if session is self._whole:
            with self._running(session, names) as run:
                return run(inputs)
        at_once = self._batch or IMAGES_AT_ONCE
        parts = max(1, ceil(len(images) / at_once))
        if self._batch and (missing := parts * at_once - len(images)):  # the last part is filled up
            filled = {name: np.zeros((missing, *values.shape[1:]), np.float32) for name, values in inputs.items()}
            inputs = {name: np.concatenate([values, filled[name]]) for name, values in inputs.items()}
        each = [
            {name: values[first : first + at_once] for name, values in inputs.items()}
            for first in range(0, parts * at_once, at_once)
        ]
        # The pool is left last: an error or Ctrl-C first stops the parts that still run, for which it waits.
        with ThreadPoolExecutor(streams) as pool, self._running(session, names) as run:
            found = list(pool.map(run, each))
        return {name: np.concatenate([outputs[name] for outputs in found])[: len(images)] for name in names}

    def _streams_or_whole(self) -> Any:
        """What computes batches: `_whole`, too, if the network should not or cannot be opened a second time."""
        with self._lock:  # once, however many ask
            if self._streams is None:
                self._streams = self._whole
                if _bytes_of(self._path) <= _LARGE_BYTES:
                    with suppress(Exception):  # e.g. not enough memory; the runtimes have a dozen error classes
                        opened = self._open_streams()
                        # Somebody may have replaced the file. Then the network that was opened first goes on alone.
                        self._streams = opened if _identity(self._path) == self._opened else self._whole
            return self._streams

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the runtimes have a dozen error classes, some with the file's content in the text
            reason = " ".join(str(error).split())[:200]
            raise LabelwiseError(f"{str(self._path)!r} cannot be run ({reason}); export it again") from None

    @abstractmethod
    def _open(self) -> None:
        """Open the file, and set everything that is declared above."""

    @abstractmethod
    def _open_streams(self) -> Any:
        """Open what computes several parts of a batch at the same time."""

    @abstractmethod
    def _running(self, session: Any, names: list[str]) -> AbstractContextManager[Callable[[Inputs], Outputs]]:
        """A function that gives these outputs; `session`: `_whole` or `_streams`."""


def _identity(path: Path) -> tuple[int, ...] | None:
    """Differs where another file has taken a file's place; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _bytes_of(path: Path) -> int:
    """Of a network's file and, in OpenVINO's format, of its weights beside it."""
    return sum(part.stat().st_size for part in {path, path.with_suffix(".bin")} if part.exists())


class OnnxEngine(SessionEngine):
    family: Family = "onnxruntime"

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise missing_extra("onnxruntime", "onnx") from None
        self._runtime = onnxruntime
        super().__init__(path)

    def _open(self) -> None:
        session = self._session(thread_count())
        images = session.get_inputs()[0].shape[:1]
        self._batch = images[0] if images and isinstance(images[0], int) else None
        self._whole = session if self._batch is None else None
        self.inputs = [entry.name for entry in session.get_inputs()]
        self._names = [output.name for output in session.get_outputs()]
        self.output_shape = session.get_outputs()[0].shape
        self.metadata = session.get_modelmeta().custom_metadata_map

    def _open_streams(self) -> Any:
        # Each caller computes in its own thread; all of them share the session's further threads.
        return self._session(1 + thread_count() - stream_count())

    def _session(self, threads: int) -> Any:
        options = self._runtime.SessionOptions()
        options.log_severity_level = 3  # errors only
        # By default it pins each thread to a core and lets idle threads spin: both take the cores from the threads that
        # decode the next images.
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return self._runtime.InferenceSession(self._path, options, providers=["CPUExecutionProvider"])

    @contextmanager
    def _running(self, session: Any, names: list[str]) -> Iterator[Callable[[Inputs], Outputs]]:
        options = self._runtime.RunOptions()
        try:
            with time_limit(lambda: setattr(options, "terminate", True)):
                yield lambda inputs: dict(zip(names, session.run(names, inputs, options), strict=True))
        except BaseException as error:
            too_long, options.terminate = options.terminate, True  # also for Ctrl-C: nobody waits for the other parts
            if not too_long:
                raise
            raise LabelwiseError(
                f"{str(self._path)!r} was stopped after {TIME_LIMIT:.0f} s for one batch; it may hold a loop without "
                "end. Use smaller batches, or another model"
            ) from error


def openvino() -> Any:
    """The package, or the error that says how to install it."""
    try:
        import openvino as package
    except ImportError:
        raise missing_extra("openvino", "openvino") from None
    return package


_OPENING = Lock()


def openvino_core() -> Any:
    """The process's only Core. Each one's CPU plugin brings a stack for signal handlers and unmaps it in the end: when
    two of them ended in the order of their start, the next Ctrl-C was a segmentation fault (OpenVINO 2026.4)."""
    with _OPENING:
        return _only_core()


@cache
def _only_core() -> Any:
    package = openvino()
    # Its bindings look NumPy up at the first conversion. If two threads came first, one would keep Python's lock and
    # wait for the other's look-up, which needs that lock: for ever.
    package.Type.f32.to_dtype()
    return package.Core()


class OpenVinoEngine(SessionEngine):
    family: Family = "openvino"

    def __init__(self, path: Path) -> None:
        self._core = openvino_core()
        super().__init__(path)

    def _open(self) -> None:
        self._model = self._core.read_model(self._path)
        outputs, images = self._model.outputs, self._model.inputs[0].partial_shape
        fixed = images.rank.is_static and images.rank.get_length() and images[0].is_static
        self._batch = images[0].get_length() if fixed else None
        self._whole = None if fixed else self._requests(1)
        self.inputs = [entry.get_any_name() for entry in self._model.inputs]
        self._names = [output.get_any_name() for output in outputs]
        shape = outputs[0].partial_shape
        self.output_shape = [
            side.get_length() if side.is_static else None for side in (shape if shape.rank.is_static else ())
        ]
        info = dict(self._model.get_rt_info().items())
        info = {**info.get("framework", {}), **info}  # "framework" holds the metadata of an ONNX file
        self.metadata = {key: str(text.value) for key, text in info.items() if hasattr(text, "value")}

    def _open_streams(self) -> SimpleQueue[Any]:
        return self._requests(stream_count())

    def _requests(self, streams: int) -> SimpleQueue[Any]:
        """As many requests as streams, which share all threads. Who computes takes one and puts it back."""
        settings = {
            "PERFORMANCE_HINT": "THROUGHPUT",
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": thread_count(),
            "INFERENCE_PRECISION_HINT": "f32",  # half precision, where the CPU has it, would change the logits
            "ENABLE_CPU_PINNING": False,  # the decoding threads need the cores, too
        }
        network, requests = self._core.compile_model(self._model, "CPU", settings), SimpleQueue[Any]()
        for _ in range(streams):
            requests.put(network.create_infer_request())
        return requests

    @contextmanager
    def _running(self, session: SimpleQueue[Any], names: list[str]) -> Iterator[Callable[[Inputs], Outputs]]:
        def run(inputs: Inputs) -> Outputs:
            request = session.get()
            try:
                request.infer(inputs, share_inputs=True)
                # copies: the next call overwrites this memory
                return {name: np.array(request.get_tensor(name).data, np.float32) for name in names}
            finally:
                session.put(request)

        yield run
