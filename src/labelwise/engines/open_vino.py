"""An OpenVINO (or ONNX) file as an engine. Needs neither PyTorch nor ONNX Runtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.engines.base import Family, Floats, thread_count
from labelwise.errors import LabelwiseError, missing_extra


def openvino() -> Any:
    """The package, which would otherwise count its uses at its maker's."""
    os.environ.setdefault("OPENVINO_TELEMETRY_OPT_OUT", "1")
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
            "INFERENCE_PRECISION_HINT": "f32",  # half precision where the processor has it would change the logits
            "ENABLE_CPU_PINNING": False,  # threads that decode need the cores, too
        }
        try:
            model = package.Core().read_model(path)
            self._request = package.compile_model(model, "CPU", settings).create_infer_request()
            (output,) = model.outputs
        except Exception as error:  # all of its errors are RuntimeError or ValueError, with the file's text in them
            reason = " ".join(str(error).split())[:200]
            raise LabelwiseError(
                f"{str(path)!r} is not a network that can be run ({reason}); export it again"
            ) from None
        shape = output.partial_shape
        self.output_shape: list[int | None] = [
            side.get_length() if side.is_static else None for side in (shape if shape.rank.is_static else ())
        ]
        info = dict(model.get_rt_info().items())
        info = {**info.get("framework", {}), **info}  # under "framework" is the metadata of an ONNX file
        self.metadata: dict[str, str] = {key: str(text.value) for key, text in info.items() if hasattr(text, "value")}

    def __call__(self, images: Floats) -> Floats:
        self._request.infer({0: np.ascontiguousarray(images)}, share_inputs=True)
        # a copy: the next call writes into the same memory
        out: Floats = np.array(self._request.get_output_tensor(0).data, np.float32)
        return out
