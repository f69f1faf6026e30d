"""Engines that run a network from a file: ONNX Runtime and OpenVINO."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
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


class Engine(Protocol):
    """images [B, 3, H, W] -> logits [B, N] or maps [B, C, h, w], all float32.

    A network that takes known labels also gets `known` [B, N]; without it, no label is known.
    """

    @property
    def family(self) -> Family: ...

    def __call__(self, images: Floats, known: Floats | None = None) -> Floats: ...


class FileEngine(Engine, Protocol):
    """An engine that runs a network from a file, which may also tell what led to its logits."""

    @property
    def output_shape(self) -> list[Any]:
        """Of the first output; dynamic sides are no integers."""

    @property
    def metadata(self) -> dict[str, str]: ...

    @property
    def inputs(self) -> list[str]: ...

    def outputs(self, images: Floats, known: Floats | None = None) -> dict[str, Floats]:
        """All outputs by their names."""


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


class OnnxEngine:
    family: Family = "onnxruntime"

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise missing_extra("onnxruntime", "onnx") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only
        # By default it pins each thread to a core and lets idle threads spin: both take the cores from the threads that
        # decode the next images.
        options.intra_op_num_threads = thread_count()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        except Exception as error:  # the runtime has a dozen error classes without a common base
            reason = " ".join(str(error).split())[:200]
            raise LabelwiseError(f"{str(path)!r} cannot be run ({reason}); export it again") from None
        self._path, self._options = path, onnxruntime.RunOptions
        self.inputs = [entry.name for entry in inputs]
        self._names = [output.name for output in outputs]
        self.output_shape: list[Any] = outputs[0].shape  # names and None for dynamic sides
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map

    def __call__(self, images: Floats, known: Floats | None = None) -> Floats:
        return self._run(self._names[:1], images, known)[0]

    def outputs(self, images: Floats, known: Floats | None = None) -> dict[str, Floats]:
        return dict(zip(self._names, self._run(self._names, images, known), strict=True))

    def _run(self, names: list[str], images: Floats, known: Floats | None) -> list[Floats]:
        options, inputs = self._options(), inputs_for(self.inputs, self.output_shape, images, known)
        try:
            with time_limit(lambda: setattr(options, "terminate", True)):
                found: list[Floats] = self._session.run(names, inputs, options)
                return found
        except Exception as error:
            if not options.terminate:
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


class OpenVinoEngine:
    family: Family = "openvino"

    def __init__(self, path: Path) -> None:
        package = openvino()
        settings = {
            "PERFORMANCE_HINT": "THROUGHPUT",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": thread_count(),
            "INFERENCE_PRECISION_HINT": "f32",  # half precision, where the CPU has it, would change the logits
            "ENABLE_CPU_PINNING": False,  # the decoding threads need the cores, too
        }
        try:
            model = package.Core().read_model(path)
            self._request = package.compile_model(model, "CPU", settings).create_infer_request()
            outputs = model.outputs
        except Exception as error:  # RuntimeError or ValueError, with the file's content in the message
            reason = " ".join(str(error).split())[:200]
            raise LabelwiseError(f"{str(path)!r} cannot be run ({reason}); export it again") from None
        self.inputs = [entry.get_any_name() for entry in model.inputs]
        self._names = [output.get_any_name() for output in outputs]
        shape = outputs[0].partial_shape
        self.output_shape: list[Any] = [
            side.get_length() if side.is_static else None for side in (shape if shape.rank.is_static else ())
        ]
        info = dict(model.get_rt_info().items())
        info = {**info.get("framework", {}), **info}  # "framework" holds the metadata of an ONNX file
        self.metadata: dict[str, str] = {key: str(text.value) for key, text in info.items() if hasattr(text, "value")}

    def __call__(self, images: Floats, known: Floats | None = None) -> Floats:
        self._request.infer(inputs_for(self.inputs, self.output_shape, images, known), share_inputs=True)
        return self._output(0)

    def outputs(self, images: Floats, known: Floats | None = None) -> dict[str, Floats]:
        self._request.infer(inputs_for(self.inputs, self.output_shape, images, known), share_inputs=True)
        return {name: self._output(number) for number, name in enumerate(self._names)}

    def _output(self, number: int) -> Floats:
        # a copy: the next call overwrites this memory
        return np.array(self._request.get_output_tensor(number).data, np.float32)
